"""The measurements that run in a child: figures that a machine can have, and none it cannot."""

from __future__ import annotations

import io
import json

import pytest

from brim.observe import measure


def test_a_cpu_reaches_some_flops_in_fp32_and_copies_to_no_device(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this is about a machine without a device")
    monkeypatch.setattr(measure, "_SECONDS", 0.05)
    monkeypatch.setattr(measure, "_CPU_SIZE", 256)
    assert measure.main(["matmul", "0"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["name"] == "cpu" and set(answer["matmul_flops"]) == {"fp32", "bf16"}
    assert 1e8 < answer["matmul_flops"]["fp32"] < 1e14
    assert measure.copies() == {"copy_bytes_s": {}}
    assert measure.devices()["devices"] == []


def test_the_jpeg_has_the_detail_of_a_photograph_neither_flat_nor_noise() -> None:
    image = pytest.importorskip("PIL.Image")
    data = measure._jpeg()
    opened = image.open(io.BytesIO(data))
    assert opened.size == (1024, 1024) and opened.mode == "RGB"
    bits_per_pixel = 8 * len(data) / 1024**2
    # flat colour is near 0.1 at this quality, white noise above 8
    assert 1 < bits_per_pixel < 6


@pytest.mark.parametrize(
    ("capability", "kinds"),
    [((6, 0), {"fp16", "fp32"}), ((7, 5), {"fp16", "fp32"}),
     ((8, 0), {"fp16", "fp32", "bf16", "tf32"}),
     ((9, 0), {"fp16", "fp32", "bf16", "tf32", "fp8"})],
)  # fmt: skip
def test_only_types_that_the_architecture_has_are_measured(
    capability: tuple[int, int], kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(measure, "_fp8_product", lambda size, device: lambda: None)
    names = ("bf16", "fp16", "fp32", "tf32", "fp8")
    made = {n for n in names if measure._product(n, 8, "meta") is not None}
    assert made == kinds


def test_time_per_run_does_not_depend_on_the_length_of_a_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [0.0]
    monkeypatch.setattr(measure.time, "perf_counter", lambda: now[0])

    def run() -> None:
        now[0] += 0.004

    assert measure._seconds_each(run, "cpu") == pytest.approx(0.004)
