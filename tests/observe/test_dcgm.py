"""DCGM's profiling fields beside NVML's readings."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from brim.errors import BrimError
from brim.observe import dcgm
from brim.observe.backend import Moment
from brim.observe.dcgm import WithDcgm
from brim.observe.nvml import Nvml
from brim.record.devices import DeviceProcess

Fake = Callable[[dict[str, Any]], Any]
UUID = "GPU-00000000-0000-0000-0000-000000000000"


class Reader:
    """As DcgmReader: GPU number → field number → value."""

    def __init__(self, values: dict[int, Any] | Exception) -> None:
        self.values = values
        self.shut = False

    def GetLatestGpuValuesAsFieldIdDict(self) -> dict[int, dict[int, Any]]:
        if isinstance(self.values, Exception):
            raise self.values
        return {3: self.values}

    def Shutdown(self) -> None:
        self.shut = True


def _moment() -> Moment:
    def owner(pid: int, memory: int | None) -> DeviceProcess:
        return DeviceProcess(pid=pid, whose="unknown", memory_bytes=memory)

    return Moment(t=1.0, mono=1.0, interval_s=0.5, tick=1, owner=owner)


def _backend(lib: Any, values: dict[int, Any] | Exception) -> WithDcgm:
    backend = WithDcgm(Nvml(lib), Reader(values))
    backend.open()
    return backend


def test_an_a100_gets_its_tensor_activity_and_the_field_is_not_absent_any_more(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    values = {54: UUID, 1002: 0.91, 1004: 0.44, 1009: 5e8, 1012: "N/A"}
    backend = _backend(fake_nvml(recordings.a100()), values)
    (sample,) = backend.sample(_moment())
    (device,) = backend.devices()
    assert (sample.tensor_active, sample.sm_active) == (0.44, 0.91)
    assert "tensor_active" not in device.absent and "dram_active" in device.absent
    assert backend.meanings["tensor_active"].source == "DCGM field 1004"
    assert sample.nvlink_rx_bytes_s is None
    # NVML's own PCIe figure of this sample stays; DCGM's is not mixed in
    assert sample.pcie_tx_bytes_s == 15_659_000


def test_on_hopper_gpms_own_figures_stay(fake_nvml: Fake, recordings: ModuleType) -> None:
    backend = _backend(fake_nvml(recordings.h200()), {54: UUID, 1004: 0.99})
    (sample,) = backend.sample(_moment())
    assert sample.tensor_active is not None and sample.tensor_active < 0.6
    assert backend.meanings["tensor_active"].source.startswith("nvmlGpmMetricsGet")


def test_values_of_another_device_are_not_taken(fake_nvml: Fake, recordings: ModuleType) -> None:
    backend = _backend(fake_nvml(recordings.a100()), {54: "GPU-other", 1004: 0.44})
    (sample,) = backend.sample(_moment())
    assert sample.tensor_active is None


def test_an_engine_that_goes_away_leaves_nvmls_readings(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    backend = _backend(fake_nvml(recordings.a100()), RuntimeError("connection lost"))
    (sample,) = backend.sample(_moment())
    assert sample.tensor_active is None and sample.power_w is not None
    backend.close()


def test_without_bindings_the_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dcgm, "_listens", lambda: True)
    with pytest.raises(BrimError, match="bindings are not installed"):
        dcgm.with_dcgm()
