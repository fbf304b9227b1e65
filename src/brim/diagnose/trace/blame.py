"""Whose fault each idle moment of the device is.

The device is idle in a gap because the event that ends the gap was not there yet.  So a gap is
explained by the thread that launched that event: by what it did from the start of the gap until
its launch call was through.  Time of the thread that is under nothing special (operations, launch
calls, Python between them) is *ordinary*, and ordinary idleness has two explanations:

* the host simply cannot launch faster than the device works: ``host.launch``;
* the host had been ahead, and lost its lead when it waited in a synchronisation or a blocking
  copy until the queue was empty.  What runs *during* the gap is then innocent.  Such a wait has a
  debt: the time it blocked while the device still worked, which is the lead it destroyed.  The
  ordinary and the unexplained gaps after it are charged to it, up to its debt, until the host is
  ahead again.

A synchronisation whose queue does not run dry therefore costs nothing.  And what is ordinary inside
one operation that runs in a slow implementation is that operation's: ``compute.slow-kernel``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from brim.diagnose.causes import UNKNOWN
from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.host import HostSide, State
from brim.diagnose.trace.timeline import Int64, Spans, unite

START_UP: Final = "start-up"
"""Not a cause: the time of calls that are slow once (a module's first launch)."""
MEMORY: Final = "memory"
"""Not yet a cause: time in device allocation, told apart later by its pattern."""

SLOW: Final = "compute.slow-kernel"
"""Ordinary idleness inside one operation that launches hundreds of kernels."""

LOOP: Final = "compute.expert-loop"
"""Idleness inside loops over experts."""

SHORT_NS: Final = 30_000
"""A kernel that is queued starts within this; the peers draw the same line."""
AHEAD_NS: Final = 100_000
"""With this much work queued, the host is ahead of the device again."""
READ_NS: Final = 100_000
"""A read takes this long on an idle device at most; what is longer is the copy itself."""
UNTRACED_NS: Final = 1_000_000
"""Untraced time of the launching thread up to this is Python between two operations."""
PYTHON_NS: Final = 5_000_000
"""Python without any operation for longer than this does something that is not known."""

_CAUSE: Final = {
    State.COMPILE: "host.recompile",
    State.SAVE: "host.periodic",
    State.GC: "host.gc",
    State.FLUSH: "memory.cache-flush",
    State.INPUT_MAIN: "input.main-process",
    State.INPUT_WAIT: "input.workers",
    State.TRANSFER: "transfer.pageable",
    State.READ: "host.sync",
    State.SYNC: "host.sync",
    State.MEMORY: MEMORY,
    State.SLOW_CALL: START_UP,
}
_BLOCKED: Final = (State.TRANSFER, State.READ, State.SYNC)


@dataclass(frozen=True, slots=True)
class Blame:
    """Idle gaps and their causes; the arrays of ``by`` have shape (gaps,) and sum to the gaps."""

    gaps: Spans
    by: dict[str, Int64]
    """Cause (or :data:`START_UP`, :data:`MEMORY`) → ns per gap."""
    charged: dict[int, int]
    """Host's row of a blocking call → ordinary idle ns that it was charged with."""

    def total(self, cause: str) -> int:
        return int(self.by[cause].sum()) if cause in self.by else 0

    def within(self, low: int, high: int) -> dict[str, int]:
        """Cause → ns of the gaps that start in ``[low, high)``."""
        first, last = np.searchsorted(self.gaps.start, [low, high])
        sums = {cause: int(values[first:last].sum()) for cause, values in self.by.items()}
        return {cause: ns for cause, ns in sums.items() if ns}


def blame(
    device: DeviceSide,
    host: HostSide,
    low: int,
    high: int,
    *,
    slow: Mapping[int, Spans] | None = None,
    loops: Mapping[int, Spans] | None = None,
) -> Blame:
    """Causes of the device's idle time in ``[low, high)`` ns.

    ``slow``: thread → the moments inside operations of a slow implementation.  ``loops``: the same
    for loops over experts; launches, reads of device values and what cannot be told apart in them
    are the loop's.
    """
    gaps = device.lanes.busy.gaps(low, high)
    held = _held(device, host, gaps, slow or {})
    by: dict[str, Int64] = {SLOW: held.slow}
    for state, ns in held.states.items():
        _add(by, _CAUSE[state], ns)
    charges, charged = _charge(device, host, held)
    for cause, ns in charges.items():
        _add(by, cause, ns)
    taken = sum(charges.values(), np.zeros_like(held.ordinary))
    from_ordinary = np.minimum(taken, held.ordinary)
    _add(by, "host.launch", held.ordinary - from_ordinary)
    _add(by, UNKNOWN, held.unknown - (taken - from_ordinary))
    _give_to_loops(by, held, loops or {})
    return Blame(gaps, {cause: ns for cause, ns in by.items() if ns.any()}, charged)


_OF_LOOPS: Final = ("host.launch", "host.sync", UNKNOWN)


def _give_to_loops(by: dict[str, Int64], held: _Held, loops: Mapping[int, Spans]) -> None:
    """Gaps that a launch inside a loop ends."""
    inside = np.zeros(len(held.gaps), np.bool_)
    for thread, spans in loops.items():
        mine = held.threads == thread
        inside[mine] |= spans.contains(held.launched[mine])
    if not inside.any():
        return
    total = np.zeros(len(held.gaps), np.int64)
    for cause in _OF_LOOPS:
        if cause in by:
            total += np.where(inside, by[cause], 0)
            by[cause] = np.where(inside, 0, by[cause])
    _add(by, LOOP, total)


def _add(by: dict[str, Int64], cause: str, ns: Int64) -> None:
    by[cause] = by[cause] + ns if cause in by else ns


@dataclass(frozen=True, slots=True)
class _Held:
    """What held the launching thread in each gap; shape (gaps,) each, ns."""

    gaps: Spans
    threads: Int64
    """The thread that was followed; -1: none."""
    launched: Int64
    """When the call started that ends the gap (the gap's end where no call is known)."""
    states: dict[State, Int64]
    ordinary: Int64
    slow: Int64
    """Ordinary, but inside an operation of a slow implementation."""
    unknown: Int64


def _held(
    device: DeviceSide, host: HostSide, gaps: Spans, slow_paths: Mapping[int, Spans]
) -> _Held:
    threads, launched, until = _feeders(device, host, gaps)
    zeros = np.zeros(len(gaps), np.int64)
    states = {state: zeros.copy() for state in _CAUSE}
    ordinary, slow = zeros.copy(), zeros.copy()
    for thread in np.unique(threads[threads >= 0]):
        rows = np.flatnonzero(threads == thread)
        start, end = gaps.start[rows], until[rows]
        layers = host.seen_from[int(thread)]
        for state in states:
            # the work is queued after ``end``, but the host may still be blocked for it
            last = gaps.end[rows] if state in _BLOCKED else end
            states[state][rows] = layers[state].overlap(start, last)
        ordinary[rows] = _plain(layers, start, end)
        slow[rows] = slow_paths.get(int(thread), Spans()).overlap(start, gaps.end[rows])
    _split_reads(states)
    rest = gaps.end - until
    blocked = sum((states[state] for state in _BLOCKED), np.zeros_like(rest))
    ordinary += np.where((threads >= 0) & (rest <= SHORT_NS) & (blocked == 0), rest, 0)
    ordinary[_inside_one_launch(device, gaps)] = 0  # no host could have shortened it
    explained = sum(states.values(), ordinary.copy())
    slow = np.minimum(slow, ordinary)
    return _Held(gaps, threads, launched, states, ordinary - slow, slow, gaps.lengths - explained)


def _inside_one_launch(device: DeviceSide, gaps: Spans) -> npt.NDArray[np.bool_]:
    """Whether the events around each gap came from one call: kernels of one CUDA graph."""
    events = device.events
    after = np.minimum(np.searchsorted(events.start, gaps.end), len(events) - 1)
    correlation = events.correlation
    same = correlation[after] == correlation[np.maximum(after - 1, 0)]
    return np.asarray(same & (after > 0) & (correlation[after] >= 0), np.bool_)


def _feeders(device: DeviceSide, host: HostSide, gaps: Spans) -> tuple[Int64, Int64, Int64]:
    """For each gap: the thread to follow (-1: none), its launch, and until when to look at it."""
    events = device.events
    first = np.minimum(np.searchsorted(events.start, gaps.end), len(events) - 1)
    row = np.where(events.start[first] == gaps.end, host.launch[first], -1)
    linked = row >= 0
    feeding = host.launching_threads
    fallback = feeding[0] if feeding else -1
    at = np.maximum(row, 0)
    if not len(host.events):
        return np.full(len(gaps), -1, np.int64), gaps.end, gaps.end
    threads = np.where(linked, host.events.thread[at], fallback).astype(np.int64)
    threads[linked & ~np.isin(threads, feeding)] = fallback
    launched = np.where(linked, host.events.start[at], gaps.end)
    until = np.where(linked, np.clip(host.events.end[at], gaps.start, gaps.end), gaps.end)
    return threads, launched, until


def _plain(layers: list[Spans], start: Int64, end: Int64) -> Int64:
    """Ordinary time: launch calls, operations, short stretches of Python and of nothing."""
    if not len(start):
        return np.zeros(0, np.int64)
    python = layers[State.PYTHON].shorter_than(PYTHON_NS)
    nothing = unite(layers).gaps(int(start.min()), int(end.max())).shorter_than(UNTRACED_NS)
    parts = (layers[State.CALL], layers[State.OP], python, nothing)
    return sum((part.overlap(start, end) for part in parts), np.zeros(len(start), np.int64))


def _split_reads(states: dict[State, Int64]) -> None:
    """A read that lasts long while the device has nothing to do is a matter of the copy."""
    long = states[State.READ] > READ_NS
    states[State.TRANSFER][long] += states[State.READ][long]
    states[State.READ][long] = 0


def _charge(
    device: DeviceSide, host: HostSide, held: _Held
) -> tuple[dict[str, Int64], dict[int, int]]:
    """Idle time that goes to a wait before it: by cause and gap, and by call.

    Ordinary idleness first, then what the trace has no event for: Python that would have run
    beside the device, had the wait not emptied the queue.
    """
    charges = {cause: np.zeros_like(held.ordinary) for cause in ("host.sync", "transfer.pageable")}
    charged: dict[int, int] = {}
    calls = host.blocking
    if not len(calls.end) or not len(held.gaps):
        return charges, charged
    busy = device.lanes.busy
    debt = np.maximum(busy.before(calls.end) - busy.before(calls.start), 0)
    debt[calls.end <= host.first_launch] = 0  # it waited for what was before the capture
    ahead = _ahead(device, host)
    epoch = np.searchsorted(ahead, calls.end).tolist()
    gap_epoch = np.searchsorted(ahead, held.launched).tolist()
    last = (np.searchsorted(calls.end, held.launched, side="right") - 1).tolist()
    left, at, current = 0, -1, -1
    chargeable = held.ordinary + held.unknown
    for gap in np.flatnonzero((chargeable > 0) & (held.launched >= calls.end[0])).tolist():
        while at < last[gap]:
            at += 1
            left = (left if epoch[at] == current else 0) + int(debt[at])
            current = epoch[at]
        if left and gap_epoch[gap] == current:
            ns = min(left, int(chargeable[gap]))
            cause = "transfer.pageable" if calls.state[at] == State.TRANSFER else "host.sync"
            charges[cause][gap] += ns
            row = int(calls.row[at])
            charged[row] = charged.get(row, 0) + ns
            left -= ns
    return charges, charged


def _ahead(device: DeviceSide, host: HostSide) -> Int64:
    """Starts of the launches that found :data:`AHEAD_NS` of work still queued, sorted, ns."""
    linked = np.flatnonzero(host.launch >= 0)
    start = host.events.start[host.launch[linked]]
    order = np.argsort(start, kind="stable")
    start, end = start[order], device.events.end[linked[order]]
    if len(start) < 2:
        return np.empty(0, np.int64)
    queued = np.maximum.accumulate(end)[:-1] - start[1:]
    return start[1:][queued > AHEAD_NS]
