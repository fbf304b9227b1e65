"""The recorder of NVML's answers: what it writes, the fake gives back."""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from brim.observe.backend import Moment
from brim.observe.nvml import Nvml
from brim.record.devices import Device, DeviceProcess, DeviceSample

Fake = Callable[[dict[str, Any]], Any]
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "record_nvml.py"


@pytest.fixture(scope="module")
def recorder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("record_nvml", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _seen(lib: Any) -> tuple[list[Device], list[DeviceSample]]:
    backend = Nvml(lib)
    backend.open()

    def owner(pid: int, memory: int | None) -> DeviceProcess:
        return DeviceProcess(pid=pid, whose="unknown", memory_bytes=memory)

    for tick in range(2):
        moment = Moment(t=1.0, mono=1.0, interval_s=0.5, tick=tick, owner=owner)
        samples = backend.sample(moment)
    return backend.devices(), samples


@pytest.mark.parametrize("name", ["h200", "v100", "eight"])
def test_a_recording_of_the_fake_shows_the_same_devices(
    name: str, recorder: ModuleType, fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.NAMES[name]())
    lib.nvmlInit()
    recording = json.loads(json.dumps(recorder.record(lib, seconds=0.15, period=0.05)))
    devices, samples = _seen(fake_nvml(recording))
    devices_then, samples_then = _seen(fake_nvml(recordings.NAMES[name]()))
    for again, before in zip(devices, devices_then, strict=True):
        assert (again.name, again.pci_device_id) == (before.name, before.pci_device_id)
        assert again.absent.keys() == before.absent.keys()
    for now, then in zip(samples, samples_then, strict=True):
        fields = [f for f in DeviceSample.__struct_fields__ if f not in ("processes", "absent")]
        absent = [f for f in fields if (getattr(now, f) is None) != (getattr(then, f) is None)]
        assert absent == []
        assert now.gpu_util == pytest.approx(then.gpu_util, abs=0.02)


def test_uuids_and_process_names_are_not_in_a_recording(
    recorder: ModuleType, fake_nvml: Fake, recordings: ModuleType
) -> None:
    source = recordings.h200()
    source["devices"][0]["calls"]["nvmlDeviceGetUUID"] = "GPU-5e4c1a10-dead-beef-0000-000000000000"
    lib = fake_nvml(source)
    text = json.dumps(recorder.record(lib, seconds=0.06, period=0.05))
    assert "dead-beef" not in text and "pid" not in text.replace("processes", "")


def test_without_a_driver_the_script_says_so_and_writes_nothing(
    recorder: ModuleType,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    fake_nvml: Fake,
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml({"error": 9}))
    monkeypatch.setattr(sys, "argv", ["record_nvml", "--out", str(tmp_path / "x.json")])
    assert recorder.main() == 1
    assert "no NVIDIA driver answers here" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
