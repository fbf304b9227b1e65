"""Recordings for the fake NVML: the H200's, and other devices made from its shape."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "fixtures" / "nvml"
NOT_SUPPORTED = {"error": 3}

Json = dict[str, Any]


LOADED_FROM = 7
"""The recording begins idle; from this moment on the model trains."""
COUNTERS = ("74", "83", "197", "198")


def h200() -> Json:
    """An H200 in training, as recorded: 98 % GPU-Util, 45 % of the tensor cores' time."""
    recording = json.loads((FOLDER / "h200.json").read_text())
    device = recording["devices"][0]
    for group in ("calls", "fields", "samples"):
        device[group] = {name: _loaded(value) for name, value in device[group].items()}
    device["gpm"] = _loaded(device["gpm"])
    for counter in COUNTERS:
        device["fields"][counter] = _goes_on(device["fields"][counter]["series"])
    device["processes"] = [{"pid": 4242, "memory": 3_500_000_000}]
    return recording


def _loaded(value: Any) -> Any:
    if isinstance(value, dict) and "series" in value:
        return {"series": value["series"][LOADED_FROM:]}
    return value


def _goes_on(series: list[int]) -> Json:
    """A counter that keeps its mean rate, where a repeated series would jump back."""
    return counter(series[0], (series[-1] - series[0]) // (len(series) - 1))


def counter(start: int, step: int) -> Json:
    """Grows by ``step`` in half a second."""
    return {"per_s": [start, 2 * step]}


def eight() -> Json:
    """A node of eight."""
    recording = h200()
    recording["devices"] = [copy.deepcopy(recording["devices"][0]) for _ in range(8)]
    for number, device in enumerate(recording["devices"]):
        device["calls"]["nvmlDeviceGetUUID"] = f"GPU-00000000-0000-0000-0000-{number:012d}"
    return recording


def without_gpm(
    name: str, pci: int, capability: tuple[int, int], memory: int, watts: int, **calls: Any
) -> Json:
    """An architecture before Hopper."""
    recording = h200()
    device = recording["devices"][0]
    del device["gpm"]
    device["calls"] |= {
        "nvmlDeviceGetName": name,
        "nvmlDeviceGetPciInfo": {"busId": "00000000:3B:00.0", "pciDeviceId": pci << 16 | 0x10DE},
        "nvmlDeviceGetMemoryInfo": {"total": memory, "used": memory // 2, "free": memory // 2},
        "nvmlDeviceGetEnforcedPowerLimit": watts * 1000,
        "nvmlDeviceGetPowerUsage": watts * 900,
        "nvmlDeviceGetCudaComputeCapability": list(capability),
        **calls,
    }
    return recording


def v100() -> Json:
    """No GPM, no instant power field, no counters of heat, no JPEG engine."""
    recording = without_gpm(
        "Tesla V100-SXM2-16GB",
        0x1DB1,
        (7, 0),
        16945512448,
        300,
        nvmlDeviceGetJpgUtilization=NOT_SUPPORTED,
    )
    fields = recording["devices"][0]["fields"]
    fields |= {str(n): NOT_SUPPORTED for n in (186, 185, 197, 198, 269, 270, 271)}
    fields |= {"138": {"grows": [0, 512 * 1024]}, "139": {"grows": [0, 256 * 1024]}}
    return recording


def a100() -> Json:
    return without_gpm("NVIDIA A100-SXM4-80GB", 0x20B2, (8, 0), 85899345920, 400)


def l4() -> Json:
    """72 W: the power cap holds the clock down most of the time."""
    recording = without_gpm("NVIDIA L4", 0x27B8, (8, 9), 24152899584, 72)
    device = recording["devices"][0]
    device["fields"]["74"] = counter(0, 400_000_000)
    device["calls"]["nvmlDeviceGetClockInfo:1"] = 1065
    device["calls"]["nvmlDeviceGetMaxClockInfo:1"] = 2040
    device["calls"]["nvmlDeviceGetPowerUsage"] = 71900
    return recording


def throttled() -> Json:
    """Heat: 0.3 s of every half second, and the bits say so."""
    recording = h200()
    device = recording["devices"][0]
    device["fields"]["269"] = counter(0, 300_000_000)
    device["calls"]["nvmlDeviceGetCurrentClocksEventReasons"] = 0x20 | 0x4
    device["calls"]["nvmlDeviceGetClockInfo:1"] = 1140
    device["calls"]["nvmlDeviceGetTemperature:0"] = 87
    return recording


def shared(*pids: int) -> Json:
    """Other processes beside the job's."""
    recording = h200()
    recording["devices"][0]["processes"] = [
        {"pid": pid, "memory": 20_000_000_000 + i} for i, pid in enumerate(pids)
    ]
    return recording


def mig() -> Json:
    """An H200 cut into 3g.71gb and 1g.18gb; no utilisation, GPM per instance."""
    recording = h200()
    whole = recording["devices"][0]
    whole["samples"] = {"1": NOT_SUPPORTED, "2": NOT_SUPPORTED}
    whole["calls"]["nvmlDeviceGetUtilizationRates"] = NOT_SUPPORTED
    whole["mig"] = [
        _partition(whole, 2, "NVIDIA H200 MIG 3g.71gb", 60, 75161927680, tensor=70.0),
        _partition(whole, 5, "NVIDIA H200 MIG 1g.18gb", 16, 18790481920, tensor=12.0),
    ]
    return recording


def _partition(
    whole: Json, instance: int, name: str, sms: int, memory: int, *, tensor: float
) -> Json:
    return {
        "calls": {
            "nvmlDeviceGetName": name,
            "nvmlDeviceGetUUID": f"MIG-0000000{instance}-0000-0000-0000-000000000000",
            "nvmlDeviceGetMemoryInfo": {"total": memory, "used": memory // 3, "free": memory // 2},
            "nvmlDeviceGetGpuInstanceId": instance,
            "nvmlDeviceGetAttributes_v2": {"multiprocessorCount": sms},
        },
        "fields": {},
        "samples": {"1": NOT_SUPPORTED, "2": NOT_SUPPORTED},
        "gpm": {"2": 90.0, "3": 30.0, "5": tensor, "10": 25.0},
        "processes": [],
    }


def lost() -> Json:
    """The second of two devices has fallen off the bus."""
    recording = eight()
    del recording["devices"][2:]
    recording["devices"][1]["handle"] = {"error": 15}
    return recording


NAMES = {
    f.__name__: f for f in (h200, eight, v100, a100, l4, throttled, mig, lost)
}  # fmt: skip
