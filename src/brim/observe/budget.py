"""How often each kind of reading may be taken so that all together stay within a share of a core.

The cost of a driver's calls differs a hundredfold between calls, devices and drivers, so it is
measured while they are made.  When the wanted periods would cost too much, the most patient kind
is stretched first: cumulative counters lose nothing by being read seldom, averages since the last
reading only become longer averages, and what is true for a moment comes last.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

SHARE: Final = 0.005
"""Of one core, for the driver's calls of all devices; drawing and recording take the other half
of the one per cent that watching may cost."""
_SMOOTH: Final = 0.3
_EARLY: Final = 0.9
"""A reading that is due within this share of its period is taken now, not a whole sample later."""


@dataclass(frozen=True, slots=True)
class Kind:
    """Readings that are taken together."""

    name: str
    wanted_s: float
    """Period where it costs nothing; 0: at every sample."""
    longest_s: float
    """Up to here it may be stretched before the next kind has to give."""


@dataclass(slots=True)
class _Cost:
    cpu_s: float = 0.0
    """Of one reading of one device, smoothed."""
    known: bool = False

    def add(self, cpu_s: float) -> None:
        self.cpu_s += (cpu_s - self.cpu_s) * (_SMOOTH if self.known else 1.0)
        self.known = True


class Budget:
    """The periods of the kinds, most patient first."""

    def __init__(
        self,
        kinds: tuple[Kind, ...],
        *,
        share: float = SHARE,
        cpu: Callable[[], float] = time.thread_time,
    ) -> None:
        """``cpu``: CPU seconds that the calling thread has used."""
        self._kinds = kinds
        self._share = share
        self._cpu = cpu
        self._costs = {kind.name: _Cost() for kind in kinds}
        self._next: dict[tuple[str, int], float] = {}
        self._readers: dict[str, set[int]] = {kind.name: set() for kind in kinds}
        self.periods = {kind.name: kind.wanted_s for kind in kinds}
        """Kind → seconds between two readings of one device; 0: at every sample."""

    def due(self, kind: str, device: int, mono: float) -> bool:
        """Whether the reading may be taken now; the first one may always."""
        return mono >= self._next.get((kind, device), mono)

    @contextlib.contextmanager
    def reading(self, kind: str, device: int, mono: float) -> Iterator[None]:
        """Measures what the readings inside cost, and sets the time of the next."""
        first = device not in self._readers[kind]
        self._readers[kind].add(device)
        began = self._cpu()
        try:
            yield
        finally:
            self._costs[kind].add(self._cpu() - began)
            period_s = self.periods[kind] * _EARLY
            # after the first sample devices take turns
            turn = (1 + device % 16) / 16 if first else 1.0
            self._next[kind, device] = mono + period_s * turn

    def plan(self, interval_s: float) -> None:
        """Set the periods anew from what readings have cost so far; after each sample.

        ``interval_s``: between two samples, the shortest period there is.
        """
        if interval_s <= 0:
            return
        periods = {kind.name: max(kind.wanted_s, interval_s) for kind in self._kinds}
        for kind in self._kinds:
            over = self._total(periods) - self._share
            if over <= 0:
                break
            cost = self._per_period(kind.name)
            left = cost / periods[kind.name] - over
            needed = cost / left if left > 0 else kind.longest_s
            periods[kind.name] = min(max(needed, periods[kind.name]), kind.longest_s)
        factor = max(1.0, self._total(periods) / self._share)
        self.periods = {
            name: period_s * factor if period_s * factor > interval_s else 0.0
            for name, period_s in periods.items()
        }

    def _per_period(self, kind: str) -> float:
        """CPU seconds of one reading of every device."""
        return self._costs[kind].cpu_s * len(self._readers[kind])

    def _total(self, periods: dict[str, float]) -> float:
        return sum(self._per_period(kind) / period_s for kind, period_s in periods.items())
