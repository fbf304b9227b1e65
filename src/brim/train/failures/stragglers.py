"""Which rank makes the others wait, when it is always the same."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_LATE = 0.1
"""A rank is late in a step when it was busy this share longer than the median of the others."""
_MOSTLY = 0.8
"""Share of the steps in which the same rank must be late."""


@dataclass(frozen=True, slots=True)
class Straggler:
    """A rank that was late in ``late`` of the last ``steps``; seconds a step, as medians."""

    rank: int
    late: int
    steps: int
    busy: float
    others: float
    waited: float
    """Of ``busy``, more than the others waited for rows."""

    def __str__(self) -> str:
        rows = self.waited > 0.5 * (self.busy - self.others)
        why = "its rows come late" if rows else "it computes slowly"
        return (
            f"needs {self.busy:.3g} s a step before it meets the others, who need "
            f"{self.others:.3g} s ({self.late} of {self.steps} steps; {why})"
        )


class Stragglers:
    """Looks back over ``window`` steps, and names a rank once until that changes."""

    def __init__(self, window: int = 20) -> None:
        self.window = window
        self._late: deque[int | None] = deque(maxlen=window)
        self._seen: deque[tuple[Sequence[float], Sequence[float]]] = deque(maxlen=window)
        self._named: int | None = None

    def add(self, busy: Sequence[float], waited: Sequence[float]) -> Straggler | None:
        """A step of all ranks; the rank to name, if there is a new one."""
        if len(busy) < 2:
            return None
        self._late.append(_late(busy))
        self._seen.append((busy, waited))
        if len(self._late) < self.window:
            return None
        (rank, late), *_ = Counter(self._late).most_common(1)
        if rank is None or late < _MOSTLY * self.window:
            self._named = None
            return None
        if rank == self._named:
            return None
        self._named = rank
        return self._describe(rank, late)

    def _describe(self, rank: int, late: int) -> Straggler:
        own = median(busy[rank] for busy, _ in self._seen)
        others = median(_others(busy, rank) for busy, _ in self._seen)
        waited = median(waits[rank] - _others(waits, rank) for _, waits in self._seen)
        return Straggler(rank, late, self.window, own, others, waited)


def _late(busy: Sequence[float]) -> int | None:
    slowest = max(range(len(busy)), key=busy.__getitem__)
    return slowest if busy[slowest] > (1 + _LATE) * _others(busy, slowest) else None


def _others(values: Sequence[float], rank: int) -> float:
    return median(v for r, v in enumerate(values) if r != rank)
