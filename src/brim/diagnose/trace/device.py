"""A rank's device side: classes of its events, unions, windows, exact device times."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from brim.diagnose.trace.host import HostSide
from brim.diagnose.trace.kernels import Kind, classify
from brim.diagnose.trace.timeline import Int64, Spans, union
from brim.record.findings import DeviceTime
from brim.record.kineto import DeviceEvents, DeviceKind, HostKind, Trace

STEP = "ProfilerStep"


@dataclass(frozen=True, slots=True)
class Lanes:
    """Unions of device events; ``busy`` is all of them together."""

    compute: Spans
    comm: Spans
    copy: Spans
    busy: Spans

    def time(self, low: int, high: int) -> DeviceTime:
        """Exact device times in ``[low, high)`` ns."""
        compute = self.compute.within(low, high)
        busy = self.busy.within(low, high).total
        with_comm = (compute | self.comm.within(low, high)).total
        window = high - low
        return DeviceTime(
            window_us=window / 1e3,
            busy_us=busy / 1e3,
            idle_us=(window - busy) / 1e3,
            compute_us=compute.total / 1e3,
            exposed_comm_us=(with_comm - compute.total) / 1e3,
            exposed_copy_us=(busy - with_comm) / 1e3,
        )


def lanes(events: DeviceEvents, is_comm: npt.NDArray[np.bool_]) -> Lanes:
    """``is_comm``: shape (events,), True for communication kernels."""
    kernel = events.kind == DeviceKind.KERNEL
    compute = kernel & ~is_comm
    return Lanes(
        compute=union(events.start[compute], events.end[compute]),
        comm=union(events.start[is_comm], events.end[is_comm]),
        copy=union(events.start[~kernel], events.end[~kernel]),
        busy=union(events.start, events.end),
    )


class DeviceSide:
    """What one trace says about its device (or devices)."""

    def __init__(
        self, trace: Trace, *, in_flight: bool = False, host: HostSide | None = None
    ) -> None:
        """``in_flight``: the job went on before and after the trace, so what it had queued before
        the first step is not that step's; else the first step begins on an idle device."""
        self.trace = trace
        self.events = trace.device
        self.in_flight = in_flight
        self._host = host or HostSide(trace)

    @cached_property
    def kinds(self) -> npt.NDArray[np.uint8]:
        """:class:`Kind` per event, shape (events,)."""
        events = self.events
        of_name = np.full(len(self.trace.names), Kind.OTHER, np.uint8)
        for index in np.unique(events.name[events.kind == DeviceKind.KERNEL]):
            of_name[index] = classify(self.trace.names[index]).kind
        kinds = of_name[events.name]
        kinds[events.kind != DeviceKind.KERNEL] = Kind.COPY
        return kinds

    @cached_property
    def lanes(self) -> Lanes:
        """Over all devices of the trace."""
        return lanes(self.events, self.kinds == Kind.COMM)

    @cached_property
    def main_device(self) -> int:
        """The device with most device time; a trace rarely holds another."""
        devices, inverse = np.unique(self.events.device, return_inverse=True)
        time = np.bincount(inverse, (self.events.end - self.events.start).astype(np.float64))
        return int(devices[int(np.argmax(time))])

    @cached_property
    def span(self) -> tuple[int, int]:
        """First device event to last, ns."""
        return int(self.events.start.min()), int(self.events.end.max())

    @cached_property
    def profiler_steps(self) -> Int64:
        """The host's ``ProfilerStep`` spans, sorted by start: rows of the host's events."""
        host, names = self.trace.host, self.trace.names
        wanted = [index for index, name in enumerate(names) if name.startswith(STEP)]
        return np.flatnonzero(np.isin(host.name, wanted) & (host.kind != HostKind.RUNTIME))

    @cached_property
    def step_span(self) -> tuple[int, int] | None:
        """Start of the first ``ProfilerStep`` to the end of the last one or of the last device
        event, whichever is later, ns."""
        rows = self.profiler_steps
        if not len(rows):
            return None
        host = self.trace.host
        return int(host.start[rows[0]]), max(int(host.end[rows].max()), self.span[1])

    @cached_property
    def window(self) -> tuple[int, int]:
        """The measured window: the steps' where there are any, else the kernels'.

        A host that is far ahead ends its steps long before the device does.  Where the job is in
        flight a step of the device begins when it has done what was launched before the host's.
        """
        if self.in_flight and len(self.profiler_steps):
            low, high = self.host_window
            return self.done(low), self.done(high)
        return self.step_span or self.span

    @cached_property
    def host_window(self) -> tuple[int, int]:
        """The same steps as the host saw them: for what it called in them."""
        if self.in_flight and len(self.profiler_steps):
            host, rows = self.trace.host, self.profiler_steps
            return int(host.start[rows[0]]), int(host.end[rows].max())
        return self.window

    def done(self, time: int) -> int:
        """When the device has done what was launched before ``time``, at the earliest ``time``."""
        return int(self.events.end[self._launched < time].max(initial=time))

    @cached_property
    def _launched(self) -> Int64:
        """When each device event was launched; what ran before all that the capture saw launched
        was launched before it, and other events without a launch when they began."""
        launch, events = self._host.launch, self.events
        linked = launch >= 0
        first = events.start[linked].min(initial=np.iinfo(np.int64).max)
        early = np.where(events.start < first, np.iinfo(np.int64).min, events.start)
        return np.where(linked, self.trace.host.start[np.maximum(launch, 0)], early)
