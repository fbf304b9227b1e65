"""Algebra of time intervals on numpy arrays of whole nanoseconds.

A :class:`Spans` is a set of moments: disjoint half-open intervals ``[start, end)``, sorted, with a
gap between neighbours.  All operations are linear after one sort.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Int64 = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]
_NOTHING: Int64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Spans:
    """Disjoint, sorted intervals; shape (n,) each."""

    start: Int64 = field(default_factory=lambda: _NOTHING)
    end: Int64 = field(default_factory=lambda: _NOTHING)

    def __len__(self) -> int:
        return len(self.start)

    @property
    def total(self) -> int:
        """Summed length, ns."""
        return int((self.end - self.start).sum())

    @property
    def lengths(self) -> Int64:
        return self.end - self.start

    def within(self, low: int, high: int) -> Spans:
        """The part inside ``[low, high)``."""
        first = int(np.searchsorted(self.end, low, side="right"))
        last = max(first, int(np.searchsorted(self.start, high))) if high > low else first
        start, end = self.start[first:last].copy(), self.end[first:last].copy()
        if len(start):
            start[0], end[-1] = max(low, int(start[0])), min(high, int(end[-1]))
        return Spans(start, end)

    def gaps(self, low: int, high: int) -> Spans:
        """What is left of ``[low, high)``."""
        inside = self.within(low, high)
        start = np.concatenate((np.array([low], np.int64), inside.end))
        end = np.concatenate((inside.start, np.array([high], np.int64)))
        kept = end > start
        return Spans(start[kept], end[kept])

    def before(self, time: Int64) -> Int64:
        """How much of the set lies before each ``time``; shape as ``time``."""
        if not len(self):
            return np.zeros_like(time)
        ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(self.lengths)))
        index = np.searchsorted(self.start, time, side="right")
        last = np.maximum(index - 1, 0)
        over = np.maximum(self.end[last] - time, 0)
        return np.where(index > 0, ends[index] - over, 0)

    def overlap(self, start: Int64, end: Int64) -> Int64:
        """How much of each ``[start, end)`` the set covers; 0 where the end is not later."""
        return np.where(end > start, self.before(end) - self.before(start), 0)

    def contains(self, time: Int64) -> Bool:
        if not len(self):
            return np.zeros(len(time), np.bool_)
        index = np.searchsorted(self.start, time, side="right") - 1
        return (index >= 0) & (time < self.end[np.maximum(index, 0)])

    def __or__(self, other: Spans) -> Spans:
        return union(
            np.concatenate((self.start, other.start)), np.concatenate((self.end, other.end))
        )

    def __and__(self, other: Spans) -> Spans:
        return _sweep(self, other, need=2)

    def __sub__(self, other: Spans) -> Spans:
        if not len(self) or not len(other):
            return self
        low, high = int(self.start[0]), int(self.end[-1])
        return self & other.gaps(low, high)

    def shorter_than(self, length: int) -> Spans:
        kept = self.lengths <= length
        return Spans(self.start[kept], self.end[kept])


def union(start: Int64, end: Int64) -> Spans:
    """The moments in any of the intervals, which may overlap and stand in any order."""
    kept = end > start
    start, end = start[kept], end[kept]
    if not len(start):
        return Spans()
    if (start[1:] < start[:-1]).any():
        order = np.argsort(start, kind="stable")
        start, end = start[order], end[order]
    reach = np.maximum.accumulate(end)
    first = np.concatenate((np.ones(1, np.bool_), start[1:] > reach[:-1]))
    last = np.concatenate((first[1:], np.ones(1, np.bool_)))
    return Spans(start[first], reach[last])


def unite(sets: Iterable[Spans]) -> Spans:
    """The moments in any of ``sets``."""
    parts = [s for s in sets if len(s)]
    if not parts:
        return Spans()
    return union(np.concatenate([s.start for s in parts]), np.concatenate([s.end for s in parts]))


def _sweep(one: Spans, other: Spans, *, need: int) -> Spans:
    """The moments that ``need`` of two sets hold."""
    if not len(one) or not len(other):
        return Spans()
    times = np.concatenate((one.start, other.start, one.end, other.end))
    starts = len(one) + len(other)
    delta = np.ones(len(times), np.int64)
    delta[starts:] = -1
    order = np.lexsort((delta, times))  # ends before starts: touching is not overlapping
    times, depth = times[order], np.cumsum(delta[order])
    inside = (depth[:-1] >= need) & (times[1:] > times[:-1])
    return union(times[:-1][inside], times[1:][inside])
