"""The readings of one NVIDIA device or MIG partition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from brim.observe.backend import Guard, Moment, Owner, significant
from brim.observe.budget import Budget, Kind
from brim.observe.gpm import FIELDS as GPM_FIELDS
from brim.observe.gpm import Gpm
from brim.observe.nvml_fields import (
    BEFORE_HOPPER,
    REASONS,
    THROTTLE_NS,
    UNSUPPORTED,
    VALUE_OF,
)
from brim.record.devices import Device, DeviceProcess, DeviceSample

# nvmlSamplingType_t, nvmlClockType_t, nvmlFieldValue ids
_GPU_UTIL, _MEMORY_UTIL = 1, 2
_SM_CLOCK, _MEMORY_CLOCK = 1, 2
_ENERGY = 83
_NVLINK = {138: "nvlink_tx_bytes_s", 139: "nvlink_rx_bytes_s"}
_ALL_LINKS = 0xFFFFFFFF
_UTIL = {"gpu_util": _GPU_UTIL, "mem_util": _MEMORY_UTIL}

_OVER_TIME = (*GPM_FIELDS, "throttled_s")
"""Fields that tell of a stretch of time, not of a moment."""
_SAME_S = 0.05

# The binding's structures override attribute access in Python, ten times the cost of ctypes' own.
plain = object.__getattribute__

# What is read together, most patient first.  On an H200 (µs): counters 4,000, states 400, GPM
# 1,700, the moment 60; before Hopper the ring buffer takes 2,300 and the engines, whose PCIe call
# measures for 20 ms, 42,000.
COUNTERS = Kind("counters", wanted_s=2.0, longest_s=30.0)
ENGINES = Kind("engines", wanted_s=2.0, longest_s=60.0)
STATES = Kind("states", wanted_s=2.0, longest_s=10.0)
ACTIVITY = Kind("activity", wanted_s=0.0, longest_s=5.0)
MOMENT = Kind("moment", wanted_s=0.0, longest_s=2.0)
KINDS = (COUNTERS, ENGINES, STATES, ACTIVITY, MOMENT)

KIND_OF = {
    **dict.fromkeys(("energy_j", "throttled_s"), COUNTERS.name),
    **dict.fromkeys(GPM_FIELDS, ACTIVITY.name),
    **dict.fromkeys(("power_w", "sm_clock_mhz"), MOMENT.name),
    **dict.fromkeys(
        (
            "mem_util", "memory_used_bytes", "reasons", "memory_clock_mhz", "temperature_c",
            "processes",
        ),
        STATES.name,
    ),
}  # fmt: skip
"""Field → the kind of reading that it comes from."""
KIND_BEFORE_HOPPER = {
    **dict.fromkeys(("nvdec_util", "nvjpg_util", "pcie_tx_bytes_s", "pcie_rx_bytes_s"),
                    ENGINES.name),
    **dict.fromkeys(("nvlink_tx_bytes_s", "nvlink_rx_bytes_s"), COUNTERS.name),
}  # fmt: skip
"""The same where there is no GPM."""

_NO_GPM = "GPM needs Hopper or newer"
_OF_THE_WHOLE = "measured for the whole device, not for a partition"
_WHOLE_ONLY = (
    "power_w", "energy_j", "sm_clock_mhz", "memory_clock_mhz", "temperature_c", "reasons",
    "throttled_s", "mem_util", "fields",
)  # fmt: skip


class Unit:
    """Samples one device; what it never offers is found out once."""

    def __init__(
        self,
        lib: Any,
        handle: Any,
        index: int,
        moment_s: float,
        *,
        budget: Budget,
        parent: Any = None,
    ) -> None:
        """``parent``: the whole device's handle when ``handle`` is a MIG partition.

        ``moment_s``: CLOCK_MONOTONIC now, from which counters count.
        """
        self._budget = budget
        self._lib = lib
        self._handle = handle
        self._whole = handle if parent is None else parent
        self._partition = parent is not None
        self._index = index
        self._guard = Guard(error=lib.NVMLError, unsupported=UNSUPPORTED)
        self._counters: dict[int, int] = {}
        self._seen_us: dict[int, int] = {}
        self._stands: dict[str, Any] = {}
        """What is true until the next reading: states, and the moment's values."""
        self._read_at: dict[str, float] = {}
        """Kind → when it was read last."""
        if self._partition:
            self._guard.never |= dict.fromkeys(_WHOLE_ONLY, _OF_THE_WHOLE)
        self._gpm = self._open_gpm()
        if self._partition and self._gpm is None:
            self._guard.never["gpu_util"] = "the driver gives no utilisation under MIG"
        self._device = self._identity()
        # the driver's buffers hold seconds of history, and counters need a start
        if self._gpm is None:
            for name in _UTIL:
                self._ring_value(name)
        self._counted = moment_s
        self._from_counters(moment_s)

    @property
    def gpm(self) -> bool:
        return self._gpm is not None

    def describe(self) -> Device:
        """With the reasons known so far."""
        known = set(DeviceSample.__struct_fields__)
        absent = {name: why for name, why in self._guard.never.items() if name in known}
        return Device(index=self._index, absent=absent, **self._device)

    def sample(self, moment: Moment) -> DeviceSample:
        """What is due of the readings; states stand until they are read again, while averages and
        growths since the last reading are in the sample that took them, and nowhere else."""
        self._guard.now = {}
        fresh: dict[str, Any] = {}
        covers: dict[str, float] = {}
        for kind, read in (
            (COUNTERS, lambda: self._from_counters(moment.mono)),
            (ENGINES, self._engines),
            (ACTIVITY, self._activity),
        ):
            if (values := self._if_due(kind.name, moment, read)) is not None:
                span_s = moment.mono - self._read_at.get(kind.name, moment.mono - moment.interval_s)
                self._read_at[kind.name] = moment.mono
                fresh |= values
                covers |= {
                    name: round(span_s, 3)
                    for name, value in values.items()
                    if value is not None and abs(span_s - moment.interval_s) > _SAME_S
                }
        for kind, read in (
            (STATES, lambda: self._states(moment.owner)),
            (MOMENT, self._moment),
        ):
            self._stands |= self._if_due(kind.name, moment, read) or {}
        known = set(DeviceSample.__struct_fields__)
        return DeviceSample(
            t=moment.t,
            mono=moment.mono,
            interval_s=moment.interval_s,
            device=self._index,
            covers_s={name: s for name, s in covers.items() if name in _OVER_TIME},
            absent={name: why for name, why in self._guard.now.items() if name in known},
            **{
                name: significant(v)
                for name, v in {**self._stands, **fresh}.items()
                if v is not None
            },
        )

    def _if_due(
        self, kind: str, moment: Moment, read: Callable[[], dict[str, Any]]
    ) -> dict[str, Any] | None:
        if not self._budget.due(kind, self._index, moment.mono):
            return None
        with self._budget.reading(kind, self._index, moment.mono):
            return read()

    def close(self) -> None:
        if self._gpm is not None:
            self._gpm.close()

    def _get(self, name: str, call: str, *arguments: Any) -> Any:
        """Call ``nvml…(handle, …)``; None with the reason noted when it does not answer."""
        return self._guard.get(name, lambda: getattr(self._lib, call)(self._handle, *arguments))

    def _identity(self) -> dict[str, Any]:
        lib, whole, get = self._lib, self._whole, self._guard.get
        pci = get("pci", lambda: lib.nvmlDeviceGetPciInfo(whole))
        limit = self._get("limit", "nvmlDeviceGetEnforcedPowerLimit")
        memory = self._get("total", "nvmlDeviceGetMemoryInfo")
        capability = get("cc", lambda: lib.nvmlDeviceGetCudaComputeCapability(whole))
        clock = get("max", lambda: float(lib.nvmlDeviceGetMaxClockInfo(whole, _SM_CLOCK)))
        identity = {
            "name": _text(self._get("name", "nvmlDeviceGetName")),
            "uuid": _text(self._get("uuid", "nvmlDeviceGetUUID")),
            "pci_bus_id": _text(pci.busId) if pci is not None else "",
            "pci_device_id": f"{pci.pciDeviceId >> 16:04x}" if pci is not None else "",
            "capability": (capability[0], capability[1]) if capability is not None else None,
            "memory_bytes": int(memory.total) if memory is not None else None,
            "power_limit_w": limit / 1000 if limit is not None else None,
            "max_sm_clock_mhz": clock,
        }
        if self._partition:
            attributes = self._get("attributes", "nvmlDeviceGetAttributes_v2")
            identity["sm_count"] = getattr(attributes, "multiprocessorCount", None)
            identity["parent"] = _text(get("parent", lambda: lib.nvmlDeviceGetUUID(whole)))
        return identity

    def _open_gpm(self) -> Gpm | None:
        lib, guard = self._lib, self._guard
        support = guard.get("gpm", lambda: lib.nvmlGpmQueryDeviceSupport(self._whole))
        gpm = None
        if support is not None and support.isSupportedDevice:
            instance = self._get("gpm", "nvmlDeviceGetGpuInstanceId") if self._partition else None
            gpm = guard.get("gpm", lambda: Gpm(lib, self._whole, gpu_instance=instance))
        if gpm is None:
            why = guard.why("gpm") or _NO_GPM
            other = _OF_THE_WHOLE if self._partition else ""
            for name in GPM_FIELDS:
                if reason := other if name in BEFORE_HOPPER else why:
                    guard.never[name] = reason
        return gpm

    def _gpm_values(self) -> dict[str, float]:
        if self._gpm is None:
            return {}
        values = self._guard.get("gpm", self._gpm.read)
        if values is None:
            self._guard.now |= dict.fromkeys(GPM_FIELDS, self._guard.why("gpm"))
            return {}
        for name in GPM_FIELDS:
            if name not in values and name != "gpu_util":
                self._guard.never[name] = "the device's GPM has no such metric"
        return values

    def _activity(self) -> dict[str, Any]:
        """Means since the last reading: GPM's figures, or the ring buffer's."""
        values: dict[str, Any] = dict(self._gpm_values())
        if "gpu_util" not in values:
            values["gpu_util"] = self._ring_value("gpu_util")
        return values

    def _memory_util(self) -> float | None:
        """Beside GPM's own figures the last sampling period will do; the buffer costs 1.5 ms."""
        if self._gpm is None:
            return self._ring_value("mem_util")
        rates = self._get("mem_util", "nvmlDeviceGetUtilizationRates")
        return None if rates is None else rates.memory / 100

    def _ring_value(self, name: str) -> float | None:
        return self._guard.get(name, lambda: self._ring(_UTIL[name]))

    def _ring(self, kind: int) -> float:
        """Mean of the driver's ring buffer since the last call; its last period when empty.

        The momentary value twice a second would miss what happens in between.
        """
        lib, seen = self._lib, self._seen_us.get(kind, 0)
        try:
            _, samples = lib.nvmlDeviceGetSamples(self._handle, kind, seen)
        except lib.NVMLError as error:
            if getattr(error, "value", None) != lib.NVML_ERROR_NOT_FOUND:
                raise
            samples = []
        fresh = [(s.timeStamp, s.sampleValue.uiVal) for s in samples if s.timeStamp > seen]
        if not fresh:
            rates = lib.nvmlDeviceGetUtilizationRates(self._handle)
            return float(rates.gpu if kind == _GPU_UTIL else rates.memory) / 100
        self._seen_us[kind] = max(t for t, _ in fresh)
        return float(sum(value for _, value in fresh)) / len(fresh) / 100

    def _from_counters(self, mono: float) -> dict[str, Any]:
        """Energy, throttled time and NVLink traffic since the last look, ``mono`` in seconds."""
        found = self._field_values()
        span_s, self._counted = mono - self._counted, mono
        energy = found.get(_ENERGY)
        values = {
            "energy_j": None if energy is None else energy / 1000,
            "throttled_s": self._throttled(found),
        }
        if self._gpm is None and not self._partition:
            for counter, name in _NVLINK.items():
                grown = self._grown(counter, found)
                if counter not in found:
                    self._guard.never[name] = "no NVLink counter answers"
                elif grown is not None and span_s > 0:
                    values[name] = grown * 1024 / span_s
        return values

    def _field_values(self) -> dict[int, int | float]:
        """One call for many counters; those without a value are left out."""
        wanted: list[Any] = [_ENERGY, *THROTTLE_NS]
        if self._gpm is None:
            wanted += [(counter, _ALL_LINKS) for counter in _NVLINK]
        answers = self._get("fields", "nvmlDeviceGetFieldValues", wanted)
        return {
            plain(a, "fieldId"): plain(plain(a, "value"), VALUE_OF[plain(a, "valueType")])
            for a in answers or ()
            if plain(a, "nvmlReturn") == 0 and plain(a, "valueType") in VALUE_OF
        }

    def _throttled(self, found: dict[int, int | float]) -> dict[str, float] | None:
        grown = {name: self._grown(number, found) for number, name in THROTTLE_NS.items()}
        known = {name: round(ns / 1e9, 4) for name, ns in grown.items() if ns is not None}
        if not found.keys() & THROTTLE_NS.keys():
            self._guard.never.setdefault("throttled_s", "the driver counts no throttled time")
        return known or None

    def _grown(self, counter: int, found: dict[int, int | float]) -> int | None:
        """Growth of a counter since the last sample; None when it is new or has wrapped."""
        if counter not in found:
            return None
        now, before = int(found[counter]), self._counters.get(counter)
        self._counters[counter] = now
        return now - before if before is not None and now >= before else None

    def _moment(self) -> dict[str, Any]:
        power = self._get("power_w", "nvmlDeviceGetPowerUsage")
        return {
            "power_w": None if power is None else power / 1000,
            "sm_clock_mhz": self._get("sm_clock_mhz", "nvmlDeviceGetClockInfo", _SM_CLOCK),
        }

    def _reasons(self) -> list[str]:
        lib = self._lib
        read = getattr(lib, "nvmlDeviceGetCurrentClocksEventReasons", None)
        # the name before driver 535
        read = read or lib.nvmlDeviceGetCurrentClocksThrottleReasons
        bits = read(self._handle)
        return [name for bit, name in REASONS.items() if bits & bit]

    def _states(self, owner: Owner) -> dict[str, Any]:
        """What changes slowly."""
        memory = self._get("memory_used_bytes", "nvmlDeviceGetMemoryInfo")
        return {
            "mem_util": self._memory_util(),
            "memory_used_bytes": int(memory.used) if memory is not None else None,
            "reasons": self._guard.get("reasons", self._reasons),
            "memory_clock_mhz": self._get(
                "memory_clock_mhz", "nvmlDeviceGetClockInfo", _MEMORY_CLOCK
            ),
            "temperature_c": self._get("temperature_c", "nvmlDeviceGetTemperature", 0),
            "processes": self._guard.get("processes", lambda: self._processes(owner)),
        }

    def _engines(self) -> dict[str, float | None]:
        """Without GPM: decode engines, and PCIe by a call that measures for 20 ms."""
        if self._gpm is not None or self._partition:
            return {}
        lib, handle = self._lib, self._handle
        reads: dict[str, Callable[[], float]] = {
            "nvdec_util": lambda: lib.nvmlDeviceGetDecoderUtilization(handle)[0] / 100,
            "nvjpg_util": lambda: lib.nvmlDeviceGetJpgUtilization(handle)[0] / 100,
            "pcie_tx_bytes_s": lambda: lib.nvmlDeviceGetPcieThroughput(handle, 0) * 1000.0,
            "pcie_rx_bytes_s": lambda: lib.nvmlDeviceGetPcieThroughput(handle, 1) * 1000.0,
        }
        return {name: self._guard.get(name, read) for name, read in reads.items()}

    def _processes(self, owner: Owner) -> list[DeviceProcess]:
        found = self._lib.nvmlDeviceGetComputeRunningProcesses(self._handle)
        by_pid = {p.pid: p.usedGpuMemory for p in found}
        return [owner(pid, memory) for pid, memory in sorted(by_pid.items())]


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
