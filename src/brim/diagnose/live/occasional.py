"""Work that stops training now and then, told by when it runs and not by what it is called.

A line of the program that is seen in long steps alone, and that explains why they are long, is no
part of a training step: it previews, exports, checks, uploads.  Steps that are long because there
is more work in them are long in every line.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from brim.diagnose.live import stacks
from brim.record.steps import Frame, Stack, Step

LONG = 1.4
"""Times the median step: what stops training makes a step so long."""
MOST = 0.4
"""Share of the steps that may be long: with more of them, they are what a step is."""
EXPLAINS = 0.5
"""Share of what long steps take beyond the median that a line must hold."""
TWICE = 2
"""Long steps in which a line must be seen."""

_OF_THE_STEP = ("backward", "optimizer")


class Sampled(Protocol):
    """A stack with the steps that it was seen in."""

    stack: Stack
    kind: str
    wall: float
    steps: list[int]


@dataclass(slots=True)
class _Line:
    seconds: float = 0.0
    steps: set[int] = field(default_factory=set)


def occasional(steps: Sequence[Step], sites: Iterable[Sampled]) -> set[Frame]:
    """Lines of the program that only long steps pass through; few steps tell nothing."""
    walls = [s.wall - s.input_wait for s in steps]
    if len(walls) < 10:
        return set()
    middle = statistics.median(walls)
    long = {i for i, wall in enumerate(walls) if wall > LONG * middle}
    if not long or len(long) > MOST * len(walls):
        return set()
    return {
        frame
        for frame, line in _lines(sites).items()
        if len(line.steps) >= TWICE
        and line.steps <= long
        and line.seconds >= EXPLAINS * sum(walls[i] - middle for i in line.steps)
    }


def _lines(sites: Iterable[Sampled]) -> dict[Frame, _Line]:
    """Every line of the program above a computing stack, with its time."""
    found: dict[Frame, _Line] = defaultdict(_Line)
    for entry in sites:
        if belongs_to_a_step(entry):
            continue
        for frame in {f for f in entry.stack.frames if stacks.is_own(f)}:
            found[frame].seconds += entry.wall
            found[frame].steps.update(entry.steps)
    return found


def belongs_to_a_step(entry: Sampled) -> bool:
    """Backward and the optimizer are training, and what has a name of its own keeps it."""
    named = entry.kind not in (stacks.COMPUTE, stacks.PYTHON)
    return named or entry.stack.phase in _OF_THE_STEP
