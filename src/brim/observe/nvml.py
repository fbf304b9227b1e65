"""NVIDIA devices through NVML, with GPM where the architecture has it.

NVML opens no CUDA context and needs no rights for what is read here.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from brim.observe.backend import Moment, Unavailable
from brim.observe.budget import Budget
from brim.observe.nvml_fields import BEFORE_HOPPER, FIELDS
from brim.observe.nvml_unit import KIND_BEFORE_HOPPER, KIND_OF, KINDS, Unit
from brim.record.devices import Device, DeviceSample, Meaning


class Nvml:
    """The devices of this host, MIG partitions after the device they are part of."""

    name = "nvml"

    def __init__(self, lib: Any = None, *, cpu: Callable[[], float] = time.thread_time) -> None:
        """``lib``: a module like ``pynvml``; None: the real one.  ``cpu``: CPU seconds used by the
        sampling thread so far."""
        self._lib = lib
        self._units: list[Unit | _Lost] = []
        self._open = False
        self.driver = ""
        self._budget = Budget(KINDS, cpu=cpu)

    @property
    def meanings(self) -> dict[str, Meaning]:
        gpm = any(isinstance(unit, Unit) and unit.gpm for unit in self._units)
        found = FIELDS if gpm else FIELDS | BEFORE_HOPPER
        kinds = KIND_OF if gpm else KIND_OF | KIND_BEFORE_HOPPER
        periods = {name: self._budget.periods[kind] or None for name, kind in kinds.items()}
        return {
            name: msgspec.structs.replace(m, period_s=periods[name]) for name, m in found.items()
        }

    def open(self) -> None:
        """Raises :class:`Unavailable` with the reason when there is no usable NVML."""
        lib = self._lib = self._lib or _binding()
        try:
            lib.nvmlInit()
            self._open = True
            self.driver = str(lib.nvmlSystemGetDriverVersion())
            count = lib.nvmlDeviceGetCount()
        except lib.NVMLError as error:
            raise Unavailable(f"no NVIDIA driver answers here ({error})") from None
        for number in range(count):
            self._add(number)
        if not self._units:
            raise Unavailable("the NVIDIA driver shows no device")

    def devices(self) -> list[Device]:
        return [unit.describe() for unit in self._units]

    def sample(self, moment: Moment) -> list[DeviceSample]:
        found = [unit.sample(moment) for unit in self._units]
        self._budget.plan(moment.interval_s)
        return found

    def close(self) -> None:
        for unit in self._units:
            unit.close()
        self._units = []
        if self._open:
            self._open = False
            self._lib.nvmlShutdown()

    def _add(self, number: int) -> None:
        lib = self._lib
        try:
            handle = lib.nvmlDeviceGetHandleByIndex(number)
        except lib.NVMLError as error:
            # a lost device stays a row, so that the others keep their numbers
            self._units.append(_Lost(len(self._units), str(error)))
            return
        now_s = time.monotonic()
        self._units.append(Unit(lib, handle, len(self._units), now_s, budget=self._budget))
        for partition in _partitions(lib, handle):
            index = len(self._units)
            self._units.append(
                Unit(lib, partition, index, now_s, budget=self._budget, parent=handle)
            )


class _Lost:
    """A device that the driver counts and does not hand out."""

    def __init__(self, index: int, why: str) -> None:
        self._index = index
        self._absent = dict.fromkeys(("gpu_util", "memory_used_bytes", "power_w"), why)

    def describe(self) -> Device:
        return Device(index=self._index, name="lost", absent=self._absent)

    def sample(self, moment: Moment) -> DeviceSample:
        return DeviceSample(
            t=moment.t, mono=moment.mono, interval_s=moment.interval_s, device=self._index
        )

    def close(self) -> None:
        """Nothing was opened."""


def _binding() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        raise Unavailable("the package nvidia-ml-py is not installed") from None


def _partitions(lib: Any, handle: Any) -> list[Any]:
    """Handles of the MIG devices; empty where MIG is off or unknown."""
    try:
        if not lib.nvmlDeviceGetMigMode(handle)[0]:
            return []
        most = lib.nvmlDeviceGetMaxMigDeviceCount(handle)
    except lib.NVMLError:
        return []
    found = []
    for slot in range(most):
        try:
            found.append(lib.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))
        except lib.NVMLError:
            continue  # an empty slot
    return found
