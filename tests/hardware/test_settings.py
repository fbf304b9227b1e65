"""What an architecture can do, against vendor facts that people get wrong."""

from __future__ import annotations

import pytest

from brim.hardware.gpus import table
from brim.hardware.settings import release, runs_on, settings, wheel, wheels_for

P100, V100, T4, A100, L4 = (6, 0), (7, 0), (7, 5), (8, 0), (8, 9)
H200, B200, B300, RTX5090 = (9, 0), (10, 0), (10, 3), (12, 0)


def _values(capability: tuple[int, int] | None, name: str = "") -> dict[str, str]:
    gpu = next((g for g in table() if g.name == name), None)
    return {c.name: c.value for c in settings(capability, gpu=gpu)}


@pytest.mark.parametrize(
    ("capability", "dtype", "tf32", "attention", "fp8", "compile_"),
    [
        (P100, "float32", "not there", "memory-efficient", "no", "no"),
        (V100, "float16", "not there", "memory-efficient", "no", "yes"),
        (T4, "float16", "not there", "memory-efficient", "no", "yes"),
        (A100, "bfloat16", "on", "flash-attention-2", "no", "yes"),
        (L4, "bfloat16", "on", "flash-attention-2", "possible", "yes"),
        (H200, "bfloat16", "on", "flash-attention-4", "possible", "yes"),
        (B200, "bfloat16", "on", "flash-attention-4", "possible", "yes"),
        (RTX5090, "bfloat16", "on", "flash-attention-2", "possible", "yes"),
    ],
)
def test_settings_by_capability(
    capability: tuple[int, int],
    dtype: str,
    tf32: str,
    attention: str,
    fp8: str,
    compile_: str,
) -> None:
    values = _values(capability)
    assert [values[k] for k in ("dtype", "tf32", "attention", "fp8", "torch.compile")] == [
        dtype, tf32, attention, fp8, compile_,
    ]  # fmt: skip


def test_every_choice_gives_a_reason() -> None:
    for capability in (P100, V100, T4, A100, L4, H200, B200, B300, RTX5090, None):
        for gpu in (None, *table()):
            assert all(c.why and c.value for c in settings(capability, gpu=gpu))


@pytest.mark.parametrize(
    ("capability", "torch", "tags"),
    [
        (P100, (2, 13), ["cu126"]),
        (V100, (2, 13), ["cu126"]),
        (V100, (2, 10), ["cu126", "cu128"]),
        (V100, (2, 11), ["cu126"]),
        (T4, (2, 13), ["cu126", "cu130", "cu132"]),
        (H200, (2, 11), ["cu126", "cu128", "cu130"]),
        (B200, (2, 13), ["cu130", "cu132"]),
        (RTX5090, (2, 8), ["cu128", "cu129"]),
        (H200, (2, 1), []),
        ((13, 0), (2, 13), []),
    ],
)
def test_which_wheels_hold_code_for_a_device(
    capability: tuple[int, int], torch: tuple[int, int], tags: list[str]
) -> None:
    assert wheels_for(capability, torch) == tags


@pytest.mark.parametrize(
    ("capability", "arch_list", "runs"),
    [
        (V100, ["sm_75", "sm_80", "sm_90", "sm_100", "sm_120", "compute_120"], False),
        (L4, ["sm_80", "sm_90"], True),  # same major, older minor
        (A100, ["sm_86"], False),
        (H200, ["sm_90a"], True),
        (B300, ["sm_100"], True),
        (B300, ["sm_100a"], False),
        ((13, 0), ["sm_90", "compute_120"], True),  # PTX is compiled at start
        (B200, ["compute_120"], False),
        (H200, [], False),
        (H200, ["gfx942", "nonsense", "sm_"], False),
    ],
)
def test_whether_code_runs_on_a_device(
    capability: tuple[int, int], arch_list: list[str], runs: bool
) -> None:
    assert runs_on(capability, arch_list) is runs


def test_a_v100_under_the_plain_wheel_is_told_which_one_fits() -> None:
    choice = wheel(V100, torch="2.13.0+cu130", arch_list=["sm_75", "sm_80", "sm_90"])
    assert choice.value == "does not fit" and "cu126 does" in choice.why
    assert wheel(H200, torch="2.13.0+cu130", arch_list=["sm_90"]).value == "fits"


def test_without_an_installed_torch_the_newest_known_release_is_judged() -> None:
    assert wheel(V100).value == "cu126" and "last one" in wheel(V100).why
    assert wheel((13, 0)).value == "none"


def test_a_72_watt_card_without_nvlink_is_told_so() -> None:
    values = _values(L4, "L4")
    assert values["power"] == "expect throttling"
    assert values["several devices"] == "DDP, accumulation"


def test_jpeg_engines_of_unknown_count_are_not_promised() -> None:
    choices = {c.name: c for c in settings(RTX5090, gpu=_row("GeForce RTX 5090"))}
    assert choices["image decode"].value == "CPU" and "not known" in choices["image decode"].why
    h200 = {c.name: c for c in settings(H200, gpu=_row("H200 SXM 141GB"))}
    assert "7 JPEG engines (count not confirmed)" in h200["image decode"].why


def _row(name: str) -> object:
    return next(g for g in table() if g.name == name)


def test_without_a_device_fp32_on_the_cpu() -> None:
    assert _values(None)["dtype"] == "float32"


@pytest.mark.parametrize(
    ("text", "value"), [("2.13.0+cu130", (2, 13)), ("2.9.1", (2, 9)), ("", None), ("main", None)]
)
def test_release_of_a_version(text: str, value: tuple[int, int] | None) -> None:
    assert release(text) == value
