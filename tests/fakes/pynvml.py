"""A fake of the NVML binding, fed from a recording of real devices.

Two ways to use it: ``FakeNvml(recording)`` in process, or this folder on ``PYTHONPATH`` of a child
with ``FAKE_NVML=recording.json`` in its environment, where it takes the place of ``pynvml``.

A recording is ``{"driver", "devices": [{"calls", "fields", "gpm", "samples", "processes",
"mig"}]}`` as ``benchmarks/record_nvml.py`` writes it.  Any value may be ``{"series": [...]}``: one
entry per call, over and over, ``{"grows": [START, STEP]}`` per call, or ``{"per_s": [START,
RATE]}`` by the fake's clock; a call may be ``{"error": CODE}``.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def _real_binding() -> Any:
    """The true ``pynvml`` for its structures and constants, whatever shadows its name."""
    path = Path(sysconfig.get_paths()["purelib"]) / "pynvml.py"
    spec = importlib.util.spec_from_file_location("_real_pynvml", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its error classes register themselves there
    spec.loader.exec_module(module)
    return module


_real = _real_binding()
NVMLError = _real.NVMLError
_NOT_SUPPORTED = _real.NVML_ERROR_NOT_SUPPORTED


class Handle:
    """A device or MIG partition of the recording."""

    def __init__(self, data: dict[str, Any], lib: FakeNvml) -> None:
        self.data = data
        self.lib = lib
        self.turns: dict[str, int] = {}

    def value(self, key: str, node: Any) -> Any:
        """The node's value now; raises NVMLError where the recording holds one."""
        if isinstance(node, dict) and "series" in node:
            turn = self.turns.get(key, 0)
            self.turns[key] = turn + 1
            node = node["series"][turn % len(node["series"])]
        if isinstance(node, dict) and "grows" in node:
            turn = self.turns.get(key, 0)
            self.turns[key] = turn + 1
            return node["grows"][0] + turn * node["grows"][1]
        if isinstance(node, dict) and "per_s" in node:
            return int(node["per_s"][0] + self.lib.clock() * node["per_s"][1])
        if isinstance(node, dict) and "error" in node:
            raise NVMLError(node["error"])
        if node is None:
            raise NVMLError(_NOT_SUPPORTED)
        return node


class FakeNvml:
    """The functions that brim calls; structures and constants are the true binding's."""

    def __init__(self, recording: dict[str, Any]) -> None:
        self.recording = recording
        self.handles = [Handle(device, self) for device in recording.get("devices", [])]
        self.calls: dict[str, int] = {}
        self.open = False
        self.clock: Callable[[], float] = time.monotonic
        self.costs_us: dict[str, float] = {}
        """Call (or ``field N``) → what it costs; a simulated clock that nobody waits for."""
        self.cpu_s = 0.0
        self._clock_us = 1_000_000

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvml"):
            self._spend(name)
            return lambda *arguments: self._replay(name, *arguments)
        return getattr(_real, name)

    def _spend(self, name: str) -> None:
        self.cpu_s += self.costs_us.get(name, 0.0) * 1e-6

    def nvmlInit(self) -> None:
        if "error" in self.recording:
            raise NVMLError(self.recording["error"])
        self.open = True

    def nvmlShutdown(self) -> None:
        self.open = False

    def nvmlSystemGetDriverVersion(self) -> str:
        return str(self.recording["driver"])

    def nvmlDeviceGetCount(self) -> int:
        return len(self.handles)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Handle:
        self.handles[index].value("handle", self.handles[index].data.get("handle", "ok"))
        return self.handles[index]

    def nvmlDeviceGetMigMode(self, handle: Handle) -> list[int]:
        on = int(bool(handle.data.get("mig")))
        return [on, on]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Handle) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Handle, slot: int) -> Handle:
        partitions = handle.data.get("mig") or []
        if slot >= len(partitions):
            raise NVMLError(_real.NVML_ERROR_NOT_FOUND)
        return Handle(partitions[slot], self)

    def nvmlDeviceGetFieldValues(self, handle: Handle, wanted: list[Any]) -> list[Any]:
        answers = []
        for item in wanted:
            number = item[0] if isinstance(item, tuple) else item
            answer = _real.c_nvmlFieldValue_t()
            answer.fieldId = number
            try:
                value = handle.value(f"field{number}", handle.data["fields"].get(str(number)))
                answer.valueType, answer.value.ullVal = 3, int(value)
            except NVMLError as error:
                answer.nvmlReturn = error.value
            answers.append(answer)
        self.calls["nvmlDeviceGetFieldValues"] = self.calls.get("nvmlDeviceGetFieldValues", 0) + 1
        for answer in answers:
            self._spend(f"field {answer.fieldId}")
        return answers

    def nvmlDeviceGetSamples(self, handle: Handle, kind: int, seen: int) -> tuple[int, list[Any]]:
        self._spend("nvmlDeviceGetSamples")
        values = handle.value(f"samples{kind}", handle.data["samples"].get(str(kind)))
        if not values:
            raise NVMLError(_real.NVML_ERROR_NOT_FOUND)
        found = []
        for value in values:
            self._clock_us += 20_000
            found.append(
                SimpleNamespace(timeStamp=self._clock_us, sampleValue=SimpleNamespace(uiVal=value))
            )
        return 1, found

    def nvmlGpmQueryDeviceSupport(self, handle: Handle) -> Any:
        return SimpleNamespace(isSupportedDevice=int("gpm" in handle.data))

    def nvmlGpmSampleAlloc(self) -> Any:
        return _real.c_nvmlGpmSample_t()

    def nvmlGpmSampleFree(self, sample: Any) -> None:
        """Nothing was allocated."""

    def nvmlGpmSampleGet(self, handle: Handle, sample: Any) -> Any:
        self._gpm_handle = handle
        return sample

    def nvmlGpmMigSampleGet(self, handle: Handle, instance: int, sample: Any) -> Any:
        partitions = handle.data["mig"]
        found = [p for p in partitions if p["calls"]["nvmlDeviceGetGpuInstanceId"] == instance]
        self._gpm_handle = Handle(found[0], self)
        return sample

    def nvmlGpmMetricsGet(self, query: Any) -> Any:
        self._spend("nvmlGpmMetricsGet")
        values = self._gpm_handle.value("gpm", self._gpm_handle.data["gpm"])
        for slot in range(query.numMetrics):
            metric = query.metrics[slot]
            value = values.get(str(metric.metricId))
            metric.nvmlReturn = _NOT_SUPPORTED if value is None else 0
            metric.value = 0.0 if value is None else value
        return query

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Handle) -> list[Any]:
        self._spend("nvmlDeviceGetComputeRunningProcesses")
        found = handle.value("processes", handle.data.get("processes", []))
        return [SimpleNamespace(pid=p["pid"], usedGpuMemory=p.get("memory")) for p in found]

    def nvmlDeviceGetPciInfo(self, handle: Handle) -> Any:
        return SimpleNamespace(**handle.value("pci", handle.data["calls"]["nvmlDeviceGetPciInfo"]))

    def _replay(self, name: str, handle: Handle, *arguments: Any) -> Any:
        """A call that is a plain value, by name, or by name and first argument."""
        self.calls[name] = self.calls.get(name, 0) + 1
        if not hasattr(_real, name):
            raise AttributeError(name)
        calls = handle.data["calls"]
        key = f"{name}:{arguments[0]}" if arguments else name
        value = handle.value(key, calls.get(key, calls.get(name)))
        return SimpleNamespace(**value) if isinstance(value, dict) else value


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return getattr(_from_environment(), name)


def _from_environment() -> FakeNvml:
    if "_fake" not in globals():
        recording = json.loads(Path(os.environ["FAKE_NVML"]).read_text())
        globals()["_fake"] = FakeNvml(recording)
    fake: FakeNvml = globals()["_fake"]
    return fake
