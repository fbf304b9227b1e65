"""The compute kernels of a window: class, time, the call that launched each, the device."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.host import HostSide
from brim.diagnose.trace.kernels import Kernel, Kind, classify
from brim.diagnose.trace.ops import Operations
from brim.diagnose.trace.timeline import Bool, Int64
from brim.hardware import gpus
from brim.hardware.gpus import Gpu
from brim.record.kineto import DeviceKind

Float64 = npt.NDArray[np.float64]


class Kernels:
    """The window's compute kernels on all streams, by stream and start."""

    def __init__(self, device: DeviceSide, host: HostSide, operations: Operations) -> None:
        self.device, self.host, self.operations = device, host, operations
        low, high = device.window
        events = device.events
        inside = (events.start < high) & (events.end > low)
        keep = inside & (events.kind == DeviceKind.KERNEL) & (device.kinds != Kind.COMM)
        rows = np.flatnonzero(keep)
        self.rows: Int64 = rows[np.lexsort((events.start[rows], events.stream[rows]))]
        self.ns: Int64 = events.end[self.rows] - events.start[self.rows]

    @cached_property
    def classes(self) -> list[Kernel]:
        """Per name of the trace, used or not."""
        return [classify(name) for name in self.device.trace.names]

    def of_class(self, get: str) -> npt.NDArray[Any]:
        values = np.array([getattr(c, get) for c in self.classes])
        return values[self.device.events.name[self.rows]]

    @cached_property
    def kind(self) -> npt.NDArray[np.uint8]:
        return self.device.kinds[self.rows]

    @cached_property
    def dtype(self) -> npt.NDArray[np.str_]:
        return self.of_class("dtype")

    @cached_property
    def eager(self) -> Bool:
        """Launched by ATen one operation at a time."""
        eager: Bool = (self.of_class("library") == "aten") & ~self.of_class("fused")
        return eager

    @cached_property
    def launch(self) -> Int64:
        return self.host.launch[self.rows]

    @cached_property
    def operation(self) -> Int64:
        """Host row of the innermost operation, or -1."""
        return self.operations.around(self.launch)

    @cached_property
    def shaped(self) -> Int64:
        """Host row of the nearest operation with input sizes, or -1."""
        return self.operations.shaped(self.operation)

    @cached_property
    def gpu(self) -> Gpu | None:
        info = self.device.trace.devices.get(self.device.main_device)
        if info is None:
            return None
        return gpus.identify(
            name=info.name,
            capability=info.capability,
            sm_count=info.sm_count or None,
            memory_bytes=info.memory_bytes or None,
        )

    def operation_name(self, host_row: int) -> str:
        return self.device.trace.names[self.host.events.name[host_row]] if host_row >= 0 else ""
