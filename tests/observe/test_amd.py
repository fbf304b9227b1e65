"""AMD behind the same interface, with a fake of the documented shapes of amdsmi."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from brim.observe.amd import FIELDS, Amd
from brim.observe.backend import Moment, Unavailable
from brim.record.devices import DeviceProcess, DeviceSample


class AmdSmiException(Exception):
    """As the binding's: a code in ``value``."""

    def __init__(self, value: int) -> None:
        super().__init__(f"status {value}")
        self.value = value


class FakeAmdsmi:
    """An MI300X as ROCm 6.4 shows it."""

    AmdSmiException = AmdSmiException
    AmdSmiClkType = SimpleNamespace(GFX="gfx", MEM="mem")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, **changes: Any) -> None:
        self.answers: dict[str, Any] = {
            "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
            "amdsmi_get_gpu_vram_usage": {"vram_total": 196592, "vram_used": 98296},
            "amdsmi_get_power_info": {
                "socket_power": "N/A", "current_socket_power": 612, "average_socket_power": "N/A",
                "power_limit": 750_000_000,
            },
            "amdsmi_get_gpu_driver_info": {"driver_version": "6.12.12"},
            "amdsmi_get_gpu_device_uuid": "00ff74a1-0000-1000-80c2-9f3a8c1d5e77",
            "amdsmi_get_gpu_device_bdf": "0000:05:00.0",
            "amdsmi_get_gpu_activity": {
                "gfx_activity": 97, "umc_activity": 40, "mm_activity": "N/A",
            },
            "amdsmi_get_energy_count": {
                "energy_accumulator": 1_000_000, "counter_resolution": 15.3, "timestamp": 1,
            },
            "amdsmi_get_clock_info": {"clk": 2100, "max_clk": 2100, "min_clk": 500},
            "amdsmi_get_temp_metric": 61,
            "amdsmi_get_gpu_process_list": [
                {"name": "python", "pid": 7, "memory_usage": {"vram_mem": 5_000_000_000}},
                {"name": "bystander", "pid": 8, "memory_usage": {"vram_mem": 0}},
            ],
            **changes,
        }  # fmt: skip
        self.count = 1
        self.shut = False

    def amdsmi_init(self) -> None:
        if self.count < 0:
            raise AmdSmiException(34)

    def amdsmi_get_processor_handles(self) -> list[int]:
        return list(range(self.count))

    def amdsmi_shut_down(self) -> None:
        self.shut = True

    def __getattr__(self, name: str) -> Any:
        if name not in self.__dict__["answers"]:
            raise AttributeError(name)

        def call(*_arguments: Any) -> Any:
            answer = self.answers[name]
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def _moment() -> Moment:
    def owner(pid: int, memory: int | None) -> DeviceProcess:
        return DeviceProcess(pid=pid, whose="unknown", memory_bytes=memory)

    return Moment(t=1.0, mono=1.0, interval_s=0.5, tick=0, owner=owner)


def _one(lib: FakeAmdsmi) -> tuple[Amd, DeviceSample]:
    backend = Amd(lib)
    backend.open()
    (sample,) = backend.sample(_moment())
    return backend, sample


def test_an_mi300x_in_the_units_of_every_other_device() -> None:
    backend, sample = _one(FakeAmdsmi())
    (device,) = backend.devices()
    assert device.name == "AMD Instinct MI300X" and device.power_limit_w == 750.0
    assert device.memory_bytes == 196592 * 2**20
    assert (sample.gpu_util, sample.mem_util, sample.power_w) == (0.97, 0.4, 612.0)
    assert sample.energy_j == pytest.approx(15.3)
    assert (sample.sm_clock_mhz, sample.temperature_c) == (2100.0, 61.0)
    # a process without memory on the device only has the driver open
    assert sample.processes == [DeviceProcess(pid=7, whose="unknown", memory_bytes=5_000_000_000)]
    assert "untested" in backend.name and backend.driver == "6.12.12"
    backend.close()


def test_tensor_activity_is_absent_with_the_reason() -> None:
    backend, sample = _one(FakeAmdsmi())
    assert sample.tensor_active is None
    assert "amdsmi has no such counter" in backend.devices()[0].absent["tensor_active"]


def test_what_amdsmi_calls_not_available_is_null_not_zero() -> None:
    _, sample = _one(
        FakeAmdsmi(amdsmi_get_gpu_activity={"gfx_activity": "N/A", "umc_activity": "N/A"})
    )
    assert sample.gpu_util is None and sample.absent["gpu_util"] == "amdsmi answered N/A"


def test_an_error_of_one_reading_leaves_the_others() -> None:
    _, sample = _one(FakeAmdsmi(amdsmi_get_power_info=AmdSmiException(14)))
    assert sample.power_w is None and sample.absent["power_w"] == "status 14"
    assert sample.gpu_util == 0.97


def test_the_field_of_older_releases_is_read_too() -> None:
    _, sample = _one(FakeAmdsmi(amdsmi_get_power_info={"average_socket_power": 301}))
    assert sample.power_w == 301.0


@pytest.mark.parametrize(("count", "said"), [(0, "shows no device"), (-1, "status 34")])
def test_no_device_or_no_driver_is_one_sentence(count: int, said: str) -> None:
    lib = FakeAmdsmi()
    lib.count = count
    with pytest.raises(Unavailable, match=said):
        Amd(lib).open()


def test_every_field_that_is_read_has_a_meaning() -> None:
    _, sample = _one(FakeAmdsmi())
    read = {
        name for name in DeviceSample.__struct_fields__ if getattr(sample, name) is not None
    } - {"t", "mono", "interval_s", "device", "covers_s", "absent"}
    assert read == set(FIELDS)
