"""Numbers of nvml.h and what brim calls them."""

from __future__ import annotations

from brim.record.devices import Meaning

# nvmlReturn_t that no later call will change
UNSUPPORTED = {
    3: "the device or its driver does not offer it",
    4: "the driver wants more rights for it",
    13: "the driver is too old to know it",
    25: "a newer driver is needed for this call",
}

# Bits of nvmlDeviceGetCurrentClocksEventReasons; several can be set.
REASONS = {
    0x1: "idle",
    0x2: "application clocks",
    0x4: "power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "heat",
    0x40: "heat (hardware)",
    0x80: "power brake",
    0x100: "display clocks",
}
HARMLESS = frozenset({"idle", "application clocks", "display clocks"})
"""Reasons that are no fault: nothing to do, or what somebody asked for."""

# nvmlFieldValue ids of counters of time, in ns, that never lose what falls between two samples.
THROTTLE_NS = {
    74: "power cap",
    76: "sync boost",
    269: "heat",
    270: "heat (hardware)",
    271: "power brake",
}

# nvmlValueType_t → member of the union
VALUE_OF = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}

_GPM = "nvmlGpmMetricsGet"
_RING = "nvmlDeviceGetSamples: mean of the driver's ring buffer"


def _gpm(what: str, number: str, unit: str = "share") -> Meaning:
    return Meaning(unit=unit, what=what, source=f"{_GPM} {number}")


FIELDS = {
    "gpu_util": _gpm("of time in which at least one kernel ran; not a load", "1 (DCGM 1001)"),
    "mem_util": Meaning(
        unit="share",
        what="of time in which memory was read or written, in the last sampling period",
        source="nvmlDeviceGetUtilizationRates",
    ),
    "sm_active": _gpm("of SMs with a warp", "2 (DCGM 1002)"),
    "sm_occupancy": _gpm("of warp slots in use", "3 (DCGM 1003)"),
    "tensor_active": _gpm("of SM time in which tensor cores worked", "5 (DCGM 1004)"),
    "dram_active": _gpm("of the memory bandwidth", "10 (DCGM 1005)"),
    "fp32_active": _gpm("of SM time in fp32 units", "12 (DCGM 1007)"),
    "fp16_active": _gpm("of SM time in fp16 units, without tensor cores", "13 (DCGM 1008)"),
    "nvdec_util": _gpm("of time, mean over the video decoders", "30-37"),
    "nvjpg_util": _gpm("of time, mean over the JPEG decoders", "40-47"),
    "pcie_tx_bytes_s": _gpm("device to host, headers included", "20 (DCGM 1009)", "B/s"),
    "pcie_rx_bytes_s": _gpm("host to device, headers included", "21 (DCGM 1010)", "B/s"),
    "nvlink_tx_bytes_s": _gpm("sent on all links", "61 (DCGM 1011)", "B/s"),
    "nvlink_rx_bytes_s": _gpm("received on all links", "60 (DCGM 1012)", "B/s"),
    "power_w": Meaning(unit="W", what="mean of the last second", source="nvmlDeviceGetPowerUsage"),
    "energy_j": Meaning(unit="J", what="since the driver was loaded", source="field 83"),
    "sm_clock_mhz": Meaning(unit="MHz", what="at this moment", source="nvmlDeviceGetClockInfo"),
    "memory_clock_mhz": Meaning(unit="MHz", what="at this moment", source="nvmlDeviceGetClockInfo"),
    "temperature_c": Meaning(unit="°C", what="of the die", source="nvmlDeviceGetTemperature"),
    "memory_used_bytes": Meaning(
        unit="B", what="allocated by all processes", source="nvmlDeviceGetMemoryInfo"
    ),
    "reasons": Meaning(
        unit="names",
        what="what holds the clocks down at this moment",
        source="nvmlDeviceGetCurrentClocksEventReasons",
    ),
    "throttled_s": Meaning(
        unit="s",
        what="since the last reading, by reason; nothing is lost between readings",
        source="fields 74, 76, 269-271",
    ),
    "processes": Meaning(
        unit="list",
        what="with memory on the device",
        source="nvmlDeviceGetComputeRunningProcesses",
    ),
}

# Where there is no GPM these fields have another source.
BEFORE_HOPPER = {
    "gpu_util": Meaning(
        unit="share", what="of time in which at least one kernel ran; not a load", source=_RING
    ),
    "mem_util": Meaning(
        unit="share",
        what="of time in which memory was read or written",
        source=_RING,
    ),
    "nvdec_util": Meaning(
        unit="share",
        what="of time",
        source="nvmlDeviceGetDecoderUtilization",
    ),
    "nvjpg_util": Meaning(unit="share", what="of time", source="nvmlDeviceGetJpgUtilization"),
    "pcie_tx_bytes_s": Meaning(
        unit="B/s",
        what="device to host, 20 ms out of each period",
        source="nvmlDeviceGetPcieThroughput",
    ),
    "pcie_rx_bytes_s": Meaning(
        unit="B/s",
        what="host to device, 20 ms out of each period",
        source="nvmlDeviceGetPcieThroughput",
    ),
    "nvlink_tx_bytes_s": Meaning(unit="B/s", what="sent on all links", source="field 138"),
    "nvlink_rx_bytes_s": Meaning(unit="B/s", what="received on all links", source="field 139"),
}
