"""What a cure is worth: a replay of the trace with a cause removed or halved.

The replay keeps what ordered the events: calls follow one another on the host with the host's own
time between them, an event starts after its launch, after its stream's predecessor and after the
event on another stream that it was seen to wait for, and a blocking call returns when the work it
was seen to wait for is done.  Everything else moves.  So time that another constraint hides behind
the cured one comes out, as it does in reality.

A gain is a range.  The upper end is what the cause's share promises: the time goes away and all
else stays.  The lower end is the least of the replays with the cause gone and with half of it gone
and of half the promise, because a cure never removes the whole: what replaces it costs something
(workers take cores from the training thread, a fused kernel still moves its data, a faster launch
is still a launch).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt

from brim.diagnose.causes import family
from brim.diagnose.trace.blame import LOOP, SHORT_NS, SLOW
from brim.diagnose.trace.host import State
from brim.diagnose.trace.kernels import Kind, copy_direction
from brim.diagnose.trace.rank import Rank
from brim.diagnose.trace.timeline import Int64, Spans, unite

Float64 = npt.NDArray[np.float64]

MOST_EVENTS: Final = 8_000
"""Device events of a replay; a longer trace is cut at a step's end."""
LATENCY_NS: Final = 5_000
"""From a launch call's start to its kernel's, where the trace shows no shorter one."""
FAITHFUL: Final = 0.1
"""A replay whose unchanged run is further off than this says nothing."""

_HOST_STATES: Final[dict[str, tuple[State, ...]]] = {
    "input": (State.INPUT_MAIN, State.INPUT_WAIT),
    "host.launch": (State.CALL, State.OP, State.PYTHON, State.NOTHING),
    "host.recompile": (State.COMPILE,),
    "host.periodic": (State.SAVE,),
    "host.gc": (State.GC,),
    "memory.cache-flush": (State.FLUSH, State.MEMORY),
    "memory.pressure": (State.MEMORY,),
    "compute.shape-search": (State.MEMORY,),
}
_WAITS: Final[dict[str, tuple[State, ...]]] = {
    "host.sync": (State.SYNC, State.READ),
    "transfer.pageable": (State.TRANSFER,),
}


@dataclass(frozen=True, slots=True)
class Change:
    """A cure: what stays of each part, 1 = all, 0 = nothing."""

    between: Float64
    """Host time before each call."""
    wait: npt.NDArray[np.bool_]
    """Whether each call still waits for the device."""
    call: Float64
    """The call's own time."""
    event: Float64
    """Each device event's duration."""


class Replay:
    """The calls and device events of a rank's first steps, and what ordered them."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        low, high = _range(rank)
        host, events = rank.host, rank.trace.device
        rows = np.flatnonzero((events.start >= low) & (events.start < high))
        launches = host.launch[rows]
        blocking = host.blocking.row
        inside = (host.events.start[blocking] >= low) & (host.events.start[blocking] < high)
        calls = np.unique(np.concatenate((launches[launches >= 0], blocking[inside])))
        self.calls: Int64 = calls[np.argsort(host.events.start[calls], kind="stable")]
        self.start, self.end = host.events.start[self.calls], host.events.end[self.calls]
        self.low, self.high = low, high
        position = {int(row): at for at, row in enumerate(self.calls)}
        self.launch = np.array([position.get(int(row), -1) for row in launches], np.int64)
        order = np.lexsort((events.start[rows], self._launch_start(events.start[rows])))
        self.rows, self.launch = rows[order], self.launch[order]
        self.e_start, self.e_end = events.start[self.rows], events.end[self.rows]

    def _launch_start(self, fallback: Int64) -> Int64:
        if not len(self.start):
            return fallback
        return np.where(self.launch >= 0, self.start[np.maximum(self.launch, 0)], fallback)

    @cached_property
    def unchanged(self) -> Change:
        calls, events = len(self.calls), len(self.rows)
        return Change(np.ones(calls), np.ones(calls, np.bool_), np.ones(calls), np.ones(events))

    @cached_property
    def between(self) -> Int64:
        """Host time from the end of the calls before to each call's start, ns."""
        reach = np.concatenate((np.array([self.low]), np.maximum.accumulate(self.end)[:-1]))
        return np.asarray(np.maximum(self.start - np.maximum(reach, self.low), 0), np.int64)

    @cached_property
    def waits_for(self) -> Int64:
        """The event (position) whose end let each call return, -1 for calls that do not block."""
        blocking = np.isin(self.rank.host.state[self.calls], _BLOCKING)
        order = np.argsort(self.e_end, kind="stable")
        at = np.searchsorted(self.e_end[order], self.end, side="right") - 1
        event = np.where(at >= 0, order[np.maximum(at, 0)], -1)
        known = event[blocking]
        late = (known >= 0) & (self.launch[known] > np.flatnonzero(blocking))
        known[late] = -1
        out = np.full(len(self.calls), -1, np.int64)
        out[blocking] = known
        return out

    @cached_property
    def predecessor(self) -> Int64:
        """The event before each one on its stream, -1 for the first."""
        streams = self.rank.trace.device.stream[self.rows].astype(np.int64)
        devices = self.rank.trace.device.device[self.rows].astype(np.int64)
        key = devices << 32 | (streams & 0xFFFFFFFF)
        order = np.lexsort((self.e_start, key))
        out = np.full(len(self.rows), -1, np.int64)
        same = key[order][1:] == key[order][:-1]
        out[order[1:][same]] = order[:-1][same]
        return out

    @cached_property
    def depends(self) -> Int64:
        """An event on another stream that each one was seen to wait for, or -1."""
        before = self.predecessor
        ready = np.maximum(
            np.where(before >= 0, self.e_end[np.maximum(before, 0)], self.low),
            self._launch_start(np.full(len(self.rows), self.low)) + LATENCY_NS,
        )
        order = np.argsort(self.e_end, kind="stable")
        at = np.searchsorted(self.e_end[order], self.e_start, side="right") - 1
        other = np.where(at >= 0, order[np.maximum(at, 0)], -1)
        waited = (self.e_start - ready > SHORT_NS // 3) & (other >= 0) & (other != before)
        earlier = other < np.arange(len(self.rows))
        return np.where(waited & earlier & (self.e_end[np.maximum(other, 0)] > ready), other, -1)

    def run(self, change: Change) -> float:
        """Length of the replayed window, ns."""
        plan = _Plan(self)
        finish = [0.0] * len(self.rows)
        clock, at = float(self.low), 0
        between, call = self.between * change.between, plan.own * change.call
        length = (self.e_end - self.e_start) * change.event
        at = self._unlinked(plan, finish, length, at, -1)
        for index in range(len(self.calls)):
            begin = clock + between[index]
            wait = plan.waits[index]
            held = finish[wait] if wait >= 0 and change.wait[index] else begin
            at = self._launched(plan, finish, length, at, index, begin)
            if wait >= 0 and change.wait[index]:
                held = max(held, finish[wait])
            clock = max(begin, held) + call[index]
        self._unlinked(plan, finish, length, at, len(self.calls))
        return float(max(max(finish, default=0.0), clock) - self.low)

    def _launched(
        self, plan: _Plan, finish: list[float], length: Float64, at: int, call: int, begin: float
    ) -> int:
        """Place the events of one call (and those without a call that stand before them)."""
        while at < len(finish) and plan.launch[at] <= call:
            linked = plan.launch[at] >= 0
            self._place(plan, finish, length, at, begin if linked else None)
            at += 1
        return at

    def _unlinked(
        self, plan: _Plan, finish: list[float], length: Float64, at: int, call: int
    ) -> int:
        """Place events before the first call or after the last."""
        while at < len(finish) and (plan.launch[at] < 0 or plan.launch[at] <= call):
            self._place(plan, finish, length, at, None)
            at += 1
        return at

    @staticmethod
    def _place(
        plan: _Plan, finish: list[float], length: Float64, at: int, begin: float | None
    ) -> None:
        before, other = plan.before[at], plan.other[at]
        ready = finish[before] + plan.gap[at] if before >= 0 else plan.first[at]
        if begin is not None:
            ready = max(begin + plan.latency[at], ready if before >= 0 else 0.0)
        if other >= 0:
            ready = max(ready, finish[other] + plan.lag[at])
        finish[at] = ready + float(length[at])


_BLOCKING: Final = (State.SYNC, State.READ, State.TRANSFER)


class _Plan:
    """The replay's constraints as plain lists."""

    def __init__(self, replay: Replay) -> None:
        before, other = replay.predecessor, replay.depends
        end_before = np.where(before >= 0, replay.e_end[np.maximum(before, 0)], replay.low)
        launched = replay._launch_start(replay.e_start)
        delay = replay.e_start - launched
        bound = (replay.launch >= 0) & (end_before < launched) & (other < 0)
        usual = float(np.median(delay[bound])) if bound.any() else float(LATENCY_NS)
        latency = np.where(bound, delay, np.minimum(delay, min(usual, 2.0 * LATENCY_NS)))
        gap = np.maximum(replay.e_start - end_before, 0)
        queued = (replay.launch >= 0) & (launched + latency > end_before)
        self.before, self.other = before.tolist(), other.tolist()
        self.launch = replay.launch.tolist()
        self.latency = np.maximum(latency, 0).tolist()
        self.gap = np.where(queued | (other >= 0), np.minimum(gap, 1_000), gap).tolist()
        self.first = replay.e_start.astype(np.float64).tolist()
        end_other = np.where(other >= 0, replay.e_end[np.maximum(other, 0)], 0)
        self.lag = np.maximum(replay.e_start - end_other, 0).tolist()
        waits = replay.waits_for
        until = np.where(waits >= 0, replay.e_end[np.maximum(waits, 0)], 0)
        begun = np.maximum(replay.start, np.where(waits >= 0, until, replay.start))
        self.waits = waits.tolist()
        self.own = np.maximum(replay.end - begun, 0).astype(np.float64)


def _range(rank: Rank) -> tuple[int, int]:
    low, high = rank.device.step_span or rank.device.span
    starts = rank.trace.device.start
    first = int(np.searchsorted(starts, low))
    if len(starts) - first <= MOST_EVENTS:
        return low, high
    limit = int(starts[first + MOST_EVENTS])
    ends = [step.end for step in rank.steps if step.end <= limit]
    return low, ends[-1] if ends else limit


class WhatIf:
    """Gains on one rank, by replay."""

    def __init__(self, rank: Rank) -> None:
        self.rank = rank
        self.replay = Replay(rank)

    @cached_property
    def base(self) -> float:
        return self.replay.run(self.replay.unchanged)

    @cached_property
    def fidelity(self) -> float:
        """The unchanged replay's length over the observed length; 1 is perfect."""
        return self.base / max(1, self.replay.high - self.replay.low)

    def speedup(self, cause: str, stays: float) -> float | None:
        """Factor with ``stays`` of the cause left; None where the replay cannot express it."""
        change = self._change(cause, stays)
        if change is None or not len(self.replay.rows):
            return None
        return max(1.0, float(self.base / max(1.0, self.replay.run(change))))

    def _change(self, cause: str, stays: float) -> Change | None:
        replay, plain = self.replay, self.replay.unchanged
        states = _HOST_STATES.get(cause) or _HOST_STATES.get(family(cause))
        if states is not None:
            return self._host(states, stays)
        if cause in _WAITS:
            return self._waits(_WAITS[cause], stays)
        scale = self._events(cause, stays)
        if cause == SLOW:
            return self._slow(stays, scale)
        if cause == LOOP:
            return self._loop(stays, scale)
        if scale is None:
            return None
        return Change(plain.between, plain.wait, plain.call, scale[replay.rows])

    def _slow(self, stays: float, events: Float64 | None) -> Change:
        """Calls and host time inside slow paths shrink, and what these launched."""
        replay, plain, slow = self.replay, self.replay.unchanged, self.rank.slow
        inside = slow.holds(replay.calls)
        kept = np.where(inside, stays, 1.0)
        event = plain.event if events is None else events[replay.rows]
        copies = (self.rank.device.kinds == Kind.COPY) & slow.holds(self.rank.host.launch)
        event = np.where(copies[replay.rows], stays, event)
        return Change(kept, plain.wait, kept, event)

    def _loop(self, stays: float, events: Float64 | None) -> Change:
        """Calls and host time inside loops over experts shrink, and no call in them waits."""
        replay, plain = self.replay, self.replay.unchanged
        inside = self.rank.loops.holds(replay.calls)
        kept = np.where(inside, stays, 1.0)
        event = plain.event if events is None else events[replay.rows]
        return Change(kept, plain.wait & ~inside, kept, event)

    def _host(self, states: tuple[State, ...], stays: float) -> Change:
        """Host time in some states shrinks, between calls and (for launches) inside them."""
        replay, plain = self.replay, self.replay.unchanged
        spans = self._state_spans(states)
        begin = replay.start - replay.between
        hit = spans.overlap(begin, replay.start) / np.maximum(replay.between, 1)
        between = 1.0 - (1.0 - stays) * np.minimum(hit, 1.0)
        own = np.isin(self.rank.host.state[replay.calls], states)
        call = np.where(own, stays, plain.call)
        return Change(between, plain.wait, call, plain.event)

    def _state_spans(self, states: tuple[State, ...]) -> Spans:
        """Moments in which no launching thread is in another of the named states."""
        host = self.rank.host
        threads = host.launching_threads
        if not threads:
            return Spans()
        layers = host.seen_from[threads[0]]
        named = unite([layers[state] for state in states if state < State.NOTHING])
        if State.NOTHING not in states:
            return named
        return named | unite(layers).gaps(self.replay.low, self.replay.high)

    def _waits(self, states: tuple[State, ...], stays: float) -> Change:
        """Calls in some states no longer wait; of their own time ``stays`` is left.

        With half of a cause left every second call still waits.
        """
        replay, plain = self.replay, self.replay.unchanged
        own = np.isin(self.rank.host.state[replay.calls], states)
        nth = np.cumsum(own)
        freed = own & ((nth % 2 == 0) if stays > 0 else own)
        call = np.where(freed, 0.0, plain.call)
        event = plain.event
        if State.TRANSFER in states:
            event = np.where(self._crossing(), stays, 1.0)
        return Change(plain.between, plain.wait & ~freed, call, event)

    def _crossing(self) -> npt.NDArray[np.bool_]:
        names, events = self.rank.trace.names, self.rank.trace.device
        crosses = np.array([copy_direction(name) in ("h2d", "d2h") for name in names], np.bool_)
        copies = self.rank.device.kinds == Kind.COPY
        mask: npt.NDArray[np.bool_] = (crosses[events.name] & copies)[self.replay.rows]
        return mask

    def _events(self, cause: str, stays: float) -> Float64 | None:
        """Scale of every device event of the trace for a cause of busy time."""
        scale = np.ones(len(self.rank.trace.device))
        if cause in ("comm.exposed", "comm.too-many"):
            scale[self.rank.calls.rows] = stays
            return scale
        if cause == "compute.padding":
            share = self.rank.context.padding or 0.0
            scale[self.rank.kernels.rows] = 1.0 - (1.0 - stays) * share
            return scale
        loss = next((loss for loss in self.rank.losses if loss.cause == cause), None)
        if loss is None or not loss.involved_ns:
            return None
        scale[loss.rows] = 1.0 - (1.0 - stays) * loss.ns / loss.involved_ns
        return scale


def gains(rank_of: Callable[[str], Rank]) -> Callable[[str, float], tuple[float, float]]:
    """A rule that gives each cause its range, replaying the rank on which it takes most."""
    replays: dict[int, WhatIf] = {}

    def rule(cause: str, share: float) -> tuple[float, float]:
        rank = rank_of(cause)
        if rank.trace.rank not in replays:
            replays[rank.trace.rank] = WhatIf(rank)
        replay = replays[rank.trace.rank]
        if abs(replay.fidelity - 1.0) > FAITHFUL:
            return gain_range(share, [])
        return gain_range(share, [replay.speedup(cause, 0.0), replay.speedup(cause, 0.5)])

    return rule


def gain_range(share: float, replayed: Sequence[float | None]) -> tuple[float, float]:
    """(lower, upper) from a cause's share and its replays; both ends at least 1."""
    promised = 1.0 / max(1e-3, 1.0 - share)
    careful = 1.0 / max(1e-3, 1.0 - share / 2.0)
    lower = min([careful, *(speed for speed in replayed if speed is not None)])
    return max(1.0, lower), promised
