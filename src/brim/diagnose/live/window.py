"""Which steps count: those after the warm-up, without the ones that brim itself disturbed."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from brim.record.steps import Process, Step, regular
from brim.units import duration

BLOCK = 5
"""Steps compared with the rest to see whether time has become steady."""
TOLERANCE = 0.25
LONG = 2.0
"""Times the median: a longer step is none to begin with."""
FEW = 8
"""With fewer steps than this only the first one is left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Chosen:
    """The measured steps of one process."""

    steps: list[Step]
    before: list[Step]
    """Warm-up, in order."""
    probed: list[Step]
    """Steps with debug modes switched off."""
    clock: str
    why: str

    @property
    def wall(self) -> float:
        """Seconds, without brim's own counting."""
        return sum(s.wall - s.own for s in self.steps)


def choose(process: Process, *, warmup: int | None = None) -> Chosen:
    """The steady steps of a process; ``warmup`` overrides the choice of the first one."""
    clock, steps = regular(process.steps)
    if clock == "exit":
        why = "no optimizer step, no loader and no backward was seen: the whole process is measured"
        return Chosen(steps=steps, before=[], probed=[], clock=clock, why=why)
    first = min(warmup, len(steps) - 1) if warmup is not None else _first_steady(steps)
    later = steps[first:]
    return Chosen(
        steps=[s for s in later if not s.profiled and not s.probe],
        before=steps[:first],
        probed=[s for s in later if s.probe],
        clock=clock,
        why=_reason(clock, first, given=warmup is not None, of=len(steps)),
    )


def _first_steady(steps: Sequence[Step]) -> int:
    """The first step from which on a block's median is within 25 % of all that follows.

    Medians, so that a long step now and then (an epoch's start, a checkpoint) is kept: it is
    part of the steady state.  It does not begin with a long one: the last step of a warm-up may
    be as long as all others together (compilation, say).
    """
    if len(steps) < FEW:
        return min(1, len(steps) - 1)
    walls = [s.wall for s in steps]
    for first in range(1, len(walls) // 2):
        block = statistics.median(walls[first : first + BLOCK])
        rest = statistics.median(walls[first:])
        if abs(block - rest) <= TOLERANCE * rest and walls[first] <= LONG * rest:
            return first
    return len(walls) // 2


_CLOCKS = {
    "opt": "steps of the optimizer",
    "loader": "batches of the loader (no optimizer step was seen)",
    "backward": "backward passes (no optimizer step and no loader were seen)",
}


def _reason(clock: str, first: int, *, given: bool, of: int) -> str:
    kind = next(text for name, text in _CLOCKS.items() if clock.startswith(name))
    start = "as asked" if given else "when step time had become steady"
    return f"{kind}; begins after {first} of {of}, {start}"


def describe(chosen: Chosen) -> str:
    """One clause about the steps: number, median, middle half."""
    walls = sorted(s.wall for s in chosen.steps)
    if len(walls) < 2:
        return f"{len(walls)} step"
    middle = statistics.median(walls)
    low, high = walls[len(walls) // 4], walls[(3 * len(walls)) // 4]
    spread = f"middle half {duration(low)} – {duration(high)}"
    return f"{len(walls)} steps of {duration(middle)} ({spread})"
