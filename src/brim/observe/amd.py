"""AMD devices through amdsmi, behind the same interface as NVIDIA's.

Written from ROCm's documentation and tested with a fake of its shapes only: it has not run on
AMD hardware, and its ``about`` line says so.  amdsmi answers ``"N/A"`` for what a device lacks.
"""

from __future__ import annotations

import importlib
from typing import Any

from brim.observe.backend import Guard, Moment, Unavailable, significant
from brim.record.devices import Device, DeviceProcess, DeviceSample, Meaning

_MIB = 1 << 20
_NOT_SUPPORTED = {2: "the device or its driver does not offer it"}
_NO_COUNTERS = "amdsmi has no such counter; rocprofiler may"

_ONLY_NVIDIA = (
    "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp32_active", "fp16_active",
    "pcie_tx_bytes_s", "pcie_rx_bytes_s", "nvlink_tx_bytes_s", "nvlink_rx_bytes_s",
    "nvdec_util", "nvjpg_util", "reasons", "throttled_s",
)  # fmt: skip

FIELDS = {
    "gpu_util": Meaning(
        unit="share", what="of time in which the graphics engine was active", source="gfx_activity"
    ),
    "mem_util": Meaning(
        unit="share", what="of time in which the memory controller was active",
        source="umc_activity",
    ),
    "power_w": Meaning(unit="W", what="of the socket", source="amdsmi_get_power_info"),
    "energy_j": Meaning(unit="J", what="since boot", source="amdsmi_get_energy_count"),
    "sm_clock_mhz": Meaning(unit="MHz", what="graphics clock", source="amdsmi_get_clock_info"),
    "memory_clock_mhz": Meaning(unit="MHz", what="memory clock", source="amdsmi_get_clock_info"),
    "temperature_c": Meaning(unit="°C", what="hottest spot", source="amdsmi_get_temp_metric"),
    "memory_used_bytes": Meaning(
        unit="B", what="allocated by all processes", source="amdsmi_get_gpu_vram_usage"
    ),
    "processes": Meaning(
        unit="list", what="with memory on the device", source="amdsmi_get_gpu_process_list"
    ),
}  # fmt: skip


class Amd:
    """The AMD devices of this host; see :class:`brim.observe.backend.Backend`."""

    name = "amdsmi (untested on hardware)"

    def __init__(self, lib: Any = None) -> None:
        """``lib``: a module like ``amdsmi``; None: the real one."""
        self._lib = lib
        self._units: list[_Unit] = []
        self.driver = ""
        self.meanings = FIELDS

    def open(self) -> None:
        """Raises :class:`Unavailable` with the reason when there is no usable amdsmi."""
        if self._lib is None:
            try:
                self._lib = importlib.import_module("amdsmi")
            except ImportError:
                raise Unavailable("amdsmi is not installed") from None
            except Exception as error:  # the package raises KeyError or OSError without ROCm
                raise Unavailable(f"amdsmi does not load ({type(error).__name__})") from None
        lib = self._lib
        try:
            lib.amdsmi_init()
            handles = lib.amdsmi_get_processor_handles()
        except lib.AmdSmiException as error:
            raise Unavailable(f"no AMD driver answers here ({error})") from None
        self._units = [_Unit(lib, handle, i) for i, handle in enumerate(handles)]
        if not self._units:
            lib.amdsmi_shut_down()
            raise Unavailable("the AMD driver shows no device")
        self.driver = self._units[0].driver

    def devices(self) -> list[Device]:
        return [unit.describe() for unit in self._units]

    def sample(self, moment: Moment) -> list[DeviceSample]:
        return [unit.sample(moment) for unit in self._units]

    def close(self) -> None:
        if self._units:
            self._units = []
            self._lib.amdsmi_shut_down()


class _Unit:
    def __init__(self, lib: Any, handle: Any, index: int) -> None:
        self._lib = lib
        self._handle = handle
        self._index = index
        self._guard = Guard(error=lib.AmdSmiException, unsupported=_NOT_SUPPORTED)
        self._guard.never |= dict.fromkeys(_ONLY_NVIDIA, _NO_COUNTERS)
        asic = self._get("asic", "amdsmi_get_gpu_asic_info") or {}
        vram = self._get("vram", "amdsmi_get_gpu_vram_usage") or {}
        power = self._get("power", "amdsmi_get_power_info") or {}
        driver = self._get("driver", "amdsmi_get_gpu_driver_info") or {}
        self.driver = str(driver.get("driver_version", ""))
        limit = _number(power.get("power_limit"))
        total = _number(vram.get("vram_total"))
        self._device: dict[str, Any] = {
            "name": str(asic.get("market_name", "")),
            "uuid": str(self._get("uuid", "amdsmi_get_gpu_device_uuid") or ""),
            "pci_bus_id": str(self._get("bdf", "amdsmi_get_gpu_device_bdf") or ""),
            "memory_bytes": None if total is None else int(total) * _MIB,
            # watts, or microwatts since ROCm 6
            "power_limit_w": limit / 1e6 if limit is not None and limit > 1e5 else limit,
        }

    def describe(self) -> Device:
        known = set(DeviceSample.__struct_fields__)
        absent = {name: why for name, why in self._guard.never.items() if name in known}
        return Device(index=self._index, absent=absent, **self._device)

    def sample(self, moment: Moment) -> DeviceSample:
        self._guard.now = {}
        activity = self._get("gpu_util", "amdsmi_get_gpu_activity") or {}
        power = self._get("power_w", "amdsmi_get_power_info") or {}
        vram = self._get("memory_used_bytes", "amdsmi_get_gpu_vram_usage") or {}
        used = _number(vram.get("vram_used"))
        values = {
            "gpu_util": _share(activity.get("gfx_activity")),
            "mem_util": _share(activity.get("umc_activity")),
            "power_w": _first(
                power, "socket_power", "current_socket_power", "average_socket_power"
            ),
            "energy_j": self._energy(),
            "sm_clock_mhz": self._clock("sm_clock_mhz", "GFX"),
            "memory_clock_mhz": self._clock("memory_clock_mhz", "MEM"),
            "temperature_c": self._temperature(),
            "memory_used_bytes": None if used is None else int(used) * _MIB,
            "processes": self._processes(moment),
        }
        missing = {n: "amdsmi answered N/A" for n, v in values.items() if v is None}
        return DeviceSample(
            t=moment.t,
            mono=moment.mono,
            interval_s=moment.interval_s,
            device=self._index,
            absent={n: self._guard.why(n) or why for n, why in missing.items()},
            **{name: significant(v) for name, v in values.items() if v is not None},
        )

    def _get(self, name: str, call: str, *arguments: Any) -> Any:
        return self._guard.get(name, lambda: getattr(self._lib, call)(self._handle, *arguments))

    def _energy(self) -> float | None:
        count = self._get("energy_j", "amdsmi_get_energy_count") or {}
        ticks = _first(count, "energy_accumulator", "power")
        microjoules = _number(count.get("counter_resolution"))
        return ticks * microjoules / 1e6 if ticks is not None and microjoules is not None else None

    def _clock(self, name: str, kind: str) -> float | None:
        lib = self._lib
        found = self._guard.get(
            name,
            lambda: lib.amdsmi_get_clock_info(self._handle, getattr(lib.AmdSmiClkType, kind)),
        )
        return _first(found or {}, "clk", "cur_clk")

    def _temperature(self) -> float | None:
        lib = self._lib
        return _number(
            self._guard.get(
                "temperature_c",
                lambda: lib.amdsmi_get_temp_metric(
                    self._handle,
                    lib.AmdSmiTemperatureType.HOTSPOT,
                    lib.AmdSmiTemperatureMetric.CURRENT,
                ),
            )
        )

    def _processes(self, moment: Moment) -> list[DeviceProcess] | None:
        found = self._get("processes", "amdsmi_get_gpu_process_list")
        if found is None:
            return None
        memory = {int(p["pid"]): p.get("memory_usage", {}).get("vram_mem") for p in found}
        # a process without memory on this device only has the driver open
        return [moment.owner(pid, used) for pid, used in sorted(memory.items()) if used]


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _share(value: Any) -> float | None:
    number = _number(value)
    return None if number is None else number / 100


def _first(values: dict[str, Any], *names: str) -> float | None:
    """The first of the names that holds a number: releases renamed them."""
    return next((n for n in (_number(values.get(name)) for name in names) if n is not None), None)
