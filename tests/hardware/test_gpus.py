"""The table of accelerators and the matching, checked against names and figures seen in public."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.hardware.gpus import Gpu, identify, match, pci_device_id, peak_flops, short_dtype, table

GIB = 1 << 30


def _gpu(name: str) -> Gpu:
    return next(g for g in table() if g.name == name)


@pytest.mark.parametrize("gpu", table(), ids=lambda g: g.name)
def test_every_row_names_its_sources_and_keeps_the_ratios_of_tensor_cores(gpu: Gpu) -> None:
    flops = gpu.dense_tflops
    assert gpu.sources and all(len(i) == 4 and i == i.lower() for i in gpu.pci_device_ids)
    assert gpu.bandwidth_gb_s > 0 and gpu.sm_count > 0
    if "tf32" in flops and "bf16" in flops:
        assert 1.9 <= flops["bf16"] / flops["tf32"] <= 2.1, "tf32 = bf16 / 2"
    if "fp8" in flops:
        assert 1.9 <= flops["fp8"] / flops["bf16"] <= 2.1, "fp8 = 2 × bf16"
    if "bf16" in flops:
        assert flops["bf16"] == flops["fp16"]


def test_a_pci_id_stands_for_one_row_only() -> None:
    ids = [i for gpu in table() for i in gpu.pci_device_ids]
    assert len(ids) == len(set(ids))


def test_no_row_of_an_architecture_has_units_that_it_lacks() -> None:
    for gpu in table():
        if gpu.capability is not None:
            assert ("bf16" in gpu.dense_tflops) == (gpu.capability >= (8, 0)), gpu.name
            assert ("fp8" in gpu.dense_tflops) == (gpu.capability >= (8, 9)), gpu.name
            assert ("fp4" in gpu.dense_tflops) == (gpu.capability >= (10, 0)), gpu.name


def test_published_matrix_products_stay_below_the_peak() -> None:
    for gpu in table():
        for dtype, tflops in (gpu.measured_matmul_tflops or {}).items():
            assert 0.5 < tflops / gpu.dense_tflops[dtype] < 0.95, gpu.name


def test_an_h200_as_torch_shows_it_is_told_from_the_nvl_card_by_its_exact_name() -> None:
    seen = {"capability": (9, 0), "sm_count": 132, "memory_bytes": 150_110_011_392}
    assert identify(name="NVIDIA H200", **seen) is _gpu("H200 SXM 141GB")  # type: ignore[arg-type]
    assert identify(name="NVIDIA H200 NVL", **seen) is _gpu("H200 NVL 141GB")  # type: ignore[arg-type]
    ambiguous = match(name="NVIDIA H200 Custom", **seen)  # type: ignore[arg-type]
    assert ambiguous.gpu is None
    assert "H200 SXM 141GB or H200 NVL 141GB" in ambiguous.why


def test_the_pci_id_decides_where_everything_else_is_equal() -> None:
    found = match(pci_device_id=0x233B10DE, capability=(9, 0), sm_count=132, memory_bytes=140 * GIB)
    assert found.gpu is _gpu("H200 NVL 141GB") and found.why == "by PCI device id 233b"


def test_an_l40s_is_not_an_l4_though_its_name_contains_it() -> None:
    gpu = identify(
        name="NVIDIA L40S", capability=(8, 9), sm_count=142, memory_bytes=int(44.5 * GIB)
    )
    assert gpu is _gpu("L40S")
    assert identify(name="NVIDIA L40") is None


def test_one_pci_id_in_two_memory_sizes_is_settled_by_the_memory() -> None:
    v100 = {"pci_device_id": "1db1", "capability": (7, 0), "sm_count": 80}
    assert identify(memory_bytes=int(15.78 * GIB), **v100) is _gpu("Tesla V100 SXM2 16GB")  # type: ignore[arg-type]
    # not contradicted by the table alone, so the 32 GB card is found by its other properties
    found = identify(
        name="Tesla V100-SXM2-32GB",
        memory_bytes=int(31.74 * GIB),
        **v100,  # type: ignore[arg-type]
    )
    assert found is _gpu("Tesla V100 SXM2 32GB")


def test_a_mig_slice_is_its_parent_by_pci_id_with_a_share_of_the_peak() -> None:
    gpu = identify(
        name="NVIDIA H200 MIG 1g.18gb",
        pci_device_id="0x2335",
        capability=(9, 0),
        sm_count=16,
        memory_bytes=16 * GIB,
    )
    assert gpu is _gpu("H200 SXM 141GB")
    assert peak_flops(gpu, "bf16", sm_count=16) == pytest.approx(989.4e12 * 16 / 132)


def test_a_device_of_next_year_has_no_peak_and_the_reason_says_so() -> None:
    found = match(name="NVIDIA X999", capability=(13, 0), sm_count=300, memory_bytes=512 * GIB)
    assert found.gpu is None
    assert found.why == "NVIDIA X999 is not in brim's table, so no peak is known"


def test_more_sms_than_the_row_of_that_pci_id_is_a_contradiction() -> None:
    assert identify(pci_device_id="27b8", sm_count=142, memory_bytes=48 * GIB) is None


def test_an_mi300x_is_matched_without_a_cuda_capability() -> None:
    gpu = identify(
        name="AMD Instinct MI300X",
        capability=(9, 4),
        sm_count=304,
        memory_bytes=int(191.98 * GIB),
    )
    assert gpu is _gpu("AMD MI300X")


@pytest.mark.parametrize(
    ("dtype", "tflops"),
    [("bf16", 989.4), ("torch.bfloat16", 989.4), ("tf32", 494.7), ("float32", 67),
     ("torch.float8_e4m3fn", 1978.9)],
)  # fmt: skip
def test_peaks_of_an_h200_by_type(dtype: str, tflops: float) -> None:
    assert peak_flops(_gpu("H200 SXM 141GB"), dtype) == pytest.approx(tflops * 1e12)


def test_a_v100_has_no_bf16_peak_not_a_peak_of_zero() -> None:
    assert peak_flops(_gpu("Tesla V100 SXM2 16GB"), "bf16") is None
    assert short_dtype("half") == "fp16"


def test_the_pci_device_id_comes_from_sysfs_with_four_or_eight_digit_domains(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "sys/bus/pci/devices/0000:18:00.0"
    folder.mkdir(parents=True)
    (folder / "device").write_text("0x2335\n")
    assert pci_device_id("00000000:18:00.0", root=tmp_path) == "2335"
    assert pci_device_id("0000:18:00.0", root=tmp_path) == "2335"
    assert pci_device_id("0000:99:00.0", root=tmp_path) is None
