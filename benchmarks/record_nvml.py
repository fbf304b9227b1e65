"""Record what NVML answers on this machine, for the fake that the tests use.

    python benchmarks/record_nvml.py --out h200.json --seconds 10

Run it while the devices work.  Names of processes and hosts are not recorded; serial numbers and
UUIDs are replaced.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# call → how to turn its answer into JSON
CONSTANT: dict[str, Callable[[Any], Any]] = {
    "nvmlDeviceGetName": str,
    "nvmlDeviceGetPciInfo": lambda p: {"busId": _text(p.busId), "pciDeviceId": p.pciDeviceId},
    "nvmlDeviceGetEnforcedPowerLimit": int,
    "nvmlDeviceGetMaxClockInfo:1": int,
    "nvmlDeviceGetCurrPcieLinkGeneration": int,
    "nvmlDeviceGetCurrPcieLinkWidth": int,
    "nvmlDeviceGetMaxPcieLinkGeneration": int,
    "nvmlDeviceGetMaxPcieLinkWidth": int,
    "nvmlDeviceGetMemoryBusWidth": int,
    "nvmlDeviceGetCudaComputeCapability": list,
    "nvmlDeviceGetMigMode": list,
}
VARYING: dict[str, Callable[[Any], Any]] = {
    "nvmlDeviceGetMemoryInfo": lambda m: {"total": m.total, "used": m.used, "free": m.free},
    "nvmlDeviceGetUtilizationRates": lambda u: {"gpu": u.gpu, "memory": u.memory},
    "nvmlDeviceGetPowerUsage": int,
    "nvmlDeviceGetClockInfo:1": int,
    "nvmlDeviceGetClockInfo:2": int,
    "nvmlDeviceGetTemperature:0": int,
    "nvmlDeviceGetCurrentClocksEventReasons": int,
    "nvmlDeviceGetPcieThroughput:0": int,
    "nvmlDeviceGetPcieThroughput:1": int,
    "nvmlDeviceGetDecoderUtilization": list,
    "nvmlDeviceGetJpgUtilization": list,
}
FIELD_IDS = (74, 76, 83, 138, 139, 140, 141, 185, 186, 197, 198, 202, 204, 269, 270, 271)
GPM_IDS = (*range(1, 14), 20, 21, *range(30, 38), *range(40, 48), 60, 61, *range(100, 104))
SAMPLE_KINDS = (1, 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--period", type=float, default=0.5)
    args = parser.parse_args()
    try:
        import pynvml
    except ImportError:
        print("record_nvml: nvidia-ml-py is not installed", file=sys.stderr)
        return 1
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(f"record_nvml: no NVIDIA driver answers here ({error})", file=sys.stderr)
        return 1
    recording = record(pynvml, seconds=args.seconds, period=args.period)
    args.out.write_text(json.dumps(recording, indent=1) + "\n")
    print(f"{args.out}: {len(recording['devices'])} devices")
    return 0


def record(lib: Any, *, seconds: float, period: float) -> dict[str, Any]:
    """A recording in the format of ``tests/fakes/pynvml.py``."""
    handles = [lib.nvmlDeviceGetHandleByIndex(i) for i in range(lib.nvmlDeviceGetCount())]
    devices = [
        {
            "calls": {name: _answer(lib, handle, name, CONSTANT[name]) for name in CONSTANT}
            | {"nvmlDeviceGetUUID": f"GPU-00000000-0000-0000-0000-{number:012d}"},
            "fields": {},
            "samples": {},
        }
        for number, handle in enumerate(handles)
    ]
    series: list[list[dict[str, Any]]] = [[] for _ in handles]
    gpm = [_gpm_start(lib, handle) for handle in handles]
    seen: list[dict[int, int]] = [dict.fromkeys(SAMPLE_KINDS, 0) for _ in handles]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(period)
        for number, handle in enumerate(handles):
            series[number].append(_moment(lib, handle, gpm[number], seen[number]))
    for device, moments in zip(devices, series, strict=True):
        _fold(device, moments)
    return {"driver": _text(lib.nvmlSystemGetDriverVersion()), "devices": devices}


def _moment(lib: Any, handle: Any, gpm: list[Any] | None, seen: dict[int, int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "calls": {name: _answer(lib, handle, name, VARYING[name]) for name in VARYING},
        "fields": _fields(lib, handle),
        "samples": {str(kind): _samples(lib, handle, kind, seen) for kind in SAMPLE_KINDS},
    }
    if gpm is not None:
        found["gpm"] = _gpm_read(lib, handle, gpm)
    return found


def _fold(device: dict[str, Any], moments: list[dict[str, Any]]) -> None:
    """Moments to ``{"series": [...]}``, or the value itself where it never changes."""
    for group in ("calls", "fields", "samples"):
        for name in moments[0][group]:
            values = [m[group][name] for m in moments]
            same = all(v == values[0] for v in values)
            device[group][name] = values[0] if same else {"series": values}
    if "gpm" in moments[0]:
        device["gpm"] = {"series": [m["gpm"] for m in moments]}


def _answer(lib: Any, handle: Any, name: str, convert: Callable[[Any], Any]) -> Any:
    call, _, argument = name.partition(":")
    try:
        arguments = [int(argument)] if argument else []
        return convert(getattr(lib, call)(handle, *arguments))
    except lib.NVMLError as error:
        return {"error": error.value}
    except AttributeError:
        return {"error": lib.NVML_ERROR_FUNCTION_NOT_FOUND}


def _fields(lib: Any, handle: Any) -> dict[str, Any]:
    wanted = [(n, 0xFFFFFFFF) if n in (138, 139, 140, 141) else n for n in FIELD_IDS]
    members = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")
    return {
        str(a.fieldId): getattr(a.value, members[a.valueType])
        if a.nvmlReturn == 0
        else {"error": a.nvmlReturn}
        for a in lib.nvmlDeviceGetFieldValues(handle, wanted)
    }


def _samples(lib: Any, handle: Any, kind: int, seen: dict[int, int]) -> Any:
    try:
        _, samples = lib.nvmlDeviceGetSamples(handle, kind, seen[kind])
    except lib.NVMLError as error:
        return {"error": error.value}
    fresh = [s for s in samples if s.timeStamp > seen[kind]]
    first = seen[kind] == 0
    seen[kind] = max((s.timeStamp for s in fresh), default=seen[kind])
    return [s.sampleValue.uiVal for s in (fresh[-10:] if first else fresh)]


def _gpm_start(lib: Any, handle: Any) -> list[Any] | None:
    try:
        if not lib.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return None
        pair = [lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()]
        lib.nvmlGpmSampleGet(handle, pair[0])
    except lib.NVMLError:
        return None
    return pair


def _gpm_read(lib: Any, handle: Any, pair: list[Any]) -> dict[str, float]:
    lib.nvmlGpmSampleGet(handle, pair[1])
    query = lib.c_nvmlGpmMetricsGet_t()
    query.version, query.numMetrics = lib.NVML_GPM_METRICS_GET_VERSION, len(GPM_IDS)
    query.sample1, query.sample2 = pair
    for slot, metric in enumerate(GPM_IDS):
        query.metrics[slot].metricId = metric
    lib.nvmlGpmMetricsGet(query)
    pair.reverse()
    answers = query.metrics[: len(GPM_IDS)]
    return {str(m.metricId): m.value for m in answers if m.nvmlReturn == 0}


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


if __name__ == "__main__":
    raise SystemExit(main())
