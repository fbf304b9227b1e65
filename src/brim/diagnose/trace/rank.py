"""One rank: everything that its trace says, as shares of its own window."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property

import numpy as np

from brim.diagnose.causes import COMPUTE, UNKNOWN
from brim.diagnose.trace.blame import MEMORY, SLOW, START_UP, Blame, blame
from brim.diagnose.trace.comm import Calls, calls, too_many
from brim.diagnose.trace.context import TraceContext
from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.host import HostSide
from brim.diagnose.trace.kernels import Kind, copy_direction
from brim.diagnose.trace.loops import Loops
from brim.diagnose.trace.loss import Loss
from brim.diagnose.trace.losses import losses
from brim.diagnose.trace.memory import Memory, memory_pattern
from brim.diagnose.trace.ops import Lines, Operations
from brim.diagnose.trace.roofline import Call
from brim.diagnose.trace.roofline import calls as calls_with_sizes
from brim.diagnose.trace.slow import SlowOperations
from brim.diagnose.trace.steps import Step, steps
from brim.diagnose.trace.table import Kernels
from brim.diagnose.trace.timeline import Spans, union
from brim.record.findings import DeviceTime, Part, RankDeviceTime
from brim.record.kineto import Trace

Shares = dict[tuple[Part, str], float]

FEWEST_EVENTS = 20
"""Device events without which nothing is said about causes."""
FEWEST_STEPS = 3
FIRST_SHARE = 0.9
"""Of all waiting for input; from here on it is the first batch that is slow, not the loader."""
START_UP_SHARE = 0.5
"""A window that is mostly start-up is no training."""


class Rank:
    """One trace, analysed; every property is computed once."""

    def __init__(self, trace: Trace, context: TraceContext) -> None:
        self.trace = trace
        self.context = context
        self.host = HostSide(trace)
        self.device = DeviceSide(trace, in_flight=context.step_s is not None, host=self.host)
        self.operations = Operations(trace)
        self.lines = Lines(trace)
        self.kernels = Kernels(self.device, self.host, self.operations)
        self.slow = SlowOperations(self.host, self.operations)
        self.loops = Loops(self.host, self.operations)

    @property
    def window_ns(self) -> int:
        low, high = self.device.window
        return max(1, high - low)

    @cached_property
    def time(self) -> DeviceTime:
        """Device times of the measured window."""
        return self.device.lanes.time(*self.device.window)

    @cached_property
    def exact(self) -> RankDeviceTime:
        span, step = self.device.span, self.device.step_span
        lanes = self.device.lanes
        return RankDeviceTime(
            rank=self.trace.rank,
            kernel_span=lanes.time(*span),
            step_window=lanes.time(*step) if step is not None else None,
        )

    @cached_property
    def steps(self) -> list[Step]:
        return steps(self.device)

    @cached_property
    def blame(self) -> Blame:
        window = self.device.window
        slow, loops = self.slow.spans, self.loops.spans
        return blame(self.device, self.host, *window, slow=slow, loops=loops)

    @cached_property
    def memory(self) -> Memory:
        return memory_pattern(self.device, self.host, self.operations, self.steps)

    @cached_property
    def losses(self) -> list[Loss]:
        return losses(self.kernels, self.calls_with_sizes, self.slow, self.loops)

    @cached_property
    def calls_with_sizes(self) -> list[Call]:
        """Calls of operations whose input sizes were recorded."""
        return calls_with_sizes(self.kernels)

    @cached_property
    def calls(self) -> Calls:
        return calls(self.device)

    @cached_property
    def idle(self) -> dict[str, int]:
        """Cause → idle ns of the window; sums to its idle time."""
        out: dict[str, int] = defaultdict(int)
        for cause in self.blame.by:
            out[self.cause_of(cause)] += self.blame.total(cause)
        return dict(out)

    def cause_of(self, label: str) -> str:
        """The cause behind a label of :mod:`~brim.diagnose.trace.blame`."""
        if label == MEMORY:
            return self.memory.cause
        if label == START_UP:
            return UNKNOWN
        if label.startswith("input."):
            return self.context.input_cause or ("input.startup" if self._first_only else label)
        return label

    @cached_property
    def _first_only(self) -> bool:
        """Whether the device waits for input in the first step and hardly again."""
        if len(self.steps) < FEWEST_STEPS:
            return False
        waited = [
            sum(ns for cause, ns in self.blame.within(step.start, step.end).items()
                if cause.startswith("input."))
            for step in self.steps
        ]  # fmt: skip
        return waited[0] >= FIRST_SHARE * sum(waited) > 0

    @cached_property
    def start_up_ns(self) -> int:
        """Idle time of calls that are slow once."""
        ns = self.blame.total(START_UP)
        return ns + (self.blame.total(MEMORY) if self.memory.cause == UNKNOWN else 0)

    @cached_property
    def exposed_copies(self) -> tuple[int, int]:
        """ns of exposed copies between host and device, and of those on the device."""
        low, high = self.device.window
        lanes, events = self.device.lanes, self.trace.device
        crosses = np.array([copy_direction(n) in ("h2d", "d2h") for n in self.trace.names])
        rows = np.flatnonzero((self.device.kinds == Kind.COPY) & crosses[events.name])
        hidden: Spans = lanes.compute | lanes.comm
        spans = (union(events.start[rows], events.end[rows]) - hidden).within(low, high)
        copies = round(self.time.exposed_copy_us * 1e3)
        return spans.total, copies - spans.total

    @cached_property
    def slow_copies_ns(self) -> int:
        """Exposed copies on the device, which a slow path launched."""
        low, high = self.device.window
        lanes, events = self.device.lanes, self.trace.device
        mine = (self.device.kinds == Kind.COPY) & self.slow.holds(self.host.launch)
        spans = union(events.start[mine], events.end[mine]) - (lanes.compute | lanes.comm)
        return min(spans.within(low, high).total, self.exposed_copies[1])

    @cached_property
    def lost(self) -> dict[str, float]:
        """Cause → share of the window that the device computes in vain; only what would come back.

        Kernels of several streams overlap, so a cause's part of the kernels' summed time is taken
        of the compute union.
        """
        summed = float(self.kernels.ns.sum())
        if not summed:
            return {}
        compute = self.time.compute_us * 1e3 / self.window_ns
        out = {loss.cause: loss.ns / summed * compute for loss in self.losses}
        if self.context.padding:
            rest = compute - sum(out.values())
            out["compute.padding"] = rest * self.context.padding
        return out

    @cached_property
    def shares(self) -> Shares:
        """(part, cause) → share of this rank's window; sums to 1."""
        window, time = float(self.window_ns), self.time
        out: Shares = defaultdict(float)
        for cause, ns in self.idle.items():
            out["unknown" if cause == UNKNOWN else "idle", cause] += ns / window
        crossing, local = self.exposed_copies
        out["busy-not-computing", "transfer.pageable"] += crossing / window
        out["busy-not-computing", COMPUTE] += (local - self.slow_copies_ns) / window
        out["busy-lost", SLOW] += self.slow_copies_ns / window
        comm = "comm.too-many" if too_many(self.calls, len(self.steps)) else "comm.exposed"
        out["busy-not-computing", comm] += time.exposed_comm_us * 1e3 / window
        for cause, share in self.lost.items():
            out["busy-lost", cause] += share
        out["useful", COMPUTE] += time.compute_us * 1e3 / window - sum(self.lost.values())
        return {key: share for key, share in out.items() if share > 0}

    @property
    def too_short(self) -> bool:
        return len(self.trace.device) < FEWEST_EVENTS

    @property
    def is_start_up(self) -> bool:
        return self.start_up_ns >= START_UP_SHARE * self.window_ns
