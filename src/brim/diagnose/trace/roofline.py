"""How near operations come to their roof: work and time of each call by itself.

A kernel's launches do different work: one kernel serves products of many sizes, and one product
may take several kernels.  So FLOPs and bytes are those of each call's own recorded sizes, and the
time beside them is that of all kernels launched inside that call.  A call says something only
where it is whole: its work is known, all its kernels are in the window, and its longest kernel is
its own and not that of a call inside it.

The peak is the table's, at boost clock and without sparsity.  A call that beats it (its data were
still in a cache that the roof of memory does not count, or the clock was above the table's) is at
its roof: the reached share is 1, never more; FLOP/s and bytes/s stay what they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.diagnose.trace.flops import Roof, Work, work
from brim.diagnose.trace.table import Kernels
from brim.diagnose.trace.tables import Bound
from brim.diagnose.trace.timeline import Int64
from brim.hardware import gpus


@dataclass(frozen=True, slots=True)
class Call:
    """One call of an operation with recorded sizes."""

    row: int
    """Of the host's events."""
    members: Int64
    """Positions in the table of the kernels that it launches itself."""
    main: int
    """Position of the longest of them."""
    ns: int
    """Summed time of all kernels inside it."""
    work: Work | None
    """None where it is not known, or the call is not whole."""
    roof_ns: float | None
    """Least time for the work, at most ``ns``; None without a known peak."""
    bound: Bound


def work_of(table: Kernels, host_row: int) -> Work | None:
    """FLOPs and bytes of one call of an operation."""
    trace, events = table.device.trace, table.host.events
    dims, types = int(events.dims[host_row]), int(events.types[host_row])
    if dims < 0:
        return None
    kinds = trace.types[types] if types >= 0 else "[]"
    return work(table.operation_name(host_row), trace.dims[dims], kinds)


def calls(table: Kernels) -> list[Call]:
    """All calls with recorded sizes that launch kernels of the window, by host row."""
    at = np.flatnonzero(table.shaped >= 0)
    if not len(at):
        return []
    at = at[np.argsort(table.shaped[at], kind="stable")]
    cuts = np.flatnonzero(np.diff(table.shaped[at])) + 1
    inside = Inside(table)
    return [_call(table, members, inside) for members in np.split(at, cuts)]


def _call(table: Kernels, members: Int64, inside: Inside) -> Call:
    row = int(table.shaped[members[0]])
    main = int(members[int(np.argmax(table.ns[members]))])
    every = inside.positions(row)
    ns = int(table.ns[every].sum())
    done = work_of(table, row) if _is_whole(table, row, every, main) else None
    roof_ns, bound = _roof(table, main, done)
    least = min(roof_ns, float(ns)) if roof_ns is not None else None
    return Call(row, members, main, ns, done, least, bound)


_NONE: Final[tuple[Int64, Int64]] = (np.empty(0, np.int64), np.empty(0, np.int64))


class Inside:
    """Kernels by the thread and the moment of their launch."""

    def __init__(self, table: Kernels) -> None:
        host = table.host.events
        self.host = host
        linked = np.flatnonzero(table.launch >= 0)
        start, thread = host.start[table.launch[linked]], host.thread[table.launch[linked]]
        self._of: dict[int, tuple[Int64, Int64]] = {}
        for one in np.unique(thread):
            mine = np.flatnonzero(thread == one)
            mine = mine[np.argsort(start[mine], kind="stable")]
            self._of[int(one)] = (start[mine], linked[mine])

    def positions(self, row: int) -> Int64:
        """Of all kernels launched inside the host's event ``row``, on its thread."""
        start, position = self._of.get(int(self.host.thread[row]), _NONE)
        first, behind = np.searchsorted(start, (self.host.start[row], self.host.end[row]))
        return position[first:behind]


def _is_whole(table: Kernels, row: int, every: Int64, main: int) -> bool:
    if not len(every):
        return False
    low, high = table.device.window
    events, rows = table.device.events, table.rows[every]
    cut = (
        table.host.events.start[row] < table.device.host_window[0]
        or events.start[rows].min() < low
        or events.end[rows].max() > high
        or table.ns[main] <= 0
    )
    return not cut and int(table.ns[every].max()) == int(table.ns[main])


def _roof(table: Kernels, main: int, done: Work | None) -> tuple[float | None, Bound]:
    gpu, dtype = table.gpu, str(table.dtype[main])
    peak = gpus.peak_flops(gpu, dtype) if gpu is not None and dtype else None
    if gpu is None or done is None or peak is None:
        return None, ""
    seconds, bound = Roof(peak, gpu.bandwidth_gb_s * 1e9).seconds(done)
    return seconds * 1e9, bound


def reached(some: Sequence[Call]) -> float | None:
    """Share of the roof that the calls reach together, at most 1; None where none is known."""
    known = [call for call in some if call.roof_ns is not None and call.ns > 0]
    if not known:
        return None
    return sum(call.roof_ns or 0.0 for call in known) / sum(call.ns for call in known)


@dataclass(frozen=True, slots=True)
class Group:
    """All calls of one operation with one set of input sizes."""

    operation: str
    kind: int
    """Of the longest kernel."""
    members: Int64
    """Positions in the table."""
    attainable: float | None
    """Reached share of the roof, or None where peak or work are not known."""


def groups(table: Kernels, some: Sequence[Call]) -> Iterator[Group]:
    """Calls by (operation, input sizes)."""
    events = table.host.events
    by_key: dict[tuple[int, int], list[Call]] = {}
    for call in some:
        key = (int(events.name[call.row]), int(events.dims[call.row]))
        by_key.setdefault(key, []).append(call)
    for alike in by_key.values():
        longest = max(alike, key=lambda call: int(table.ns[call.main]))
        yield Group(
            operation=table.operation_name(longest.row),
            kind=int(table.kind[longest.main]),
            members=np.concatenate([call.members for call in alike]),
            attainable=reached(alike),
        )
