"""Steps whose gradient is not finite: skip some, go back, stop.

The device decides to skip, from a norm that all ranks share; here hosts count what they read of it.
They read it a fixed number of steps late, so all ranks go back after the same step.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path

RETURNS = 2
"""Times that a run goes back before it stops."""


class Verdict(Enum):
    GOOD = auto()
    SKIPPED = auto()
    """The update was skipped; the run goes on."""
    BACK = auto()
    """Too many in a row: back to a checkpoint, with a lower learning rate."""
    STOP = auto()
    """Going back has not helped."""


class BadSteps:
    """``limit``: bad steps in a row that send the run back."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.row = 0
        """Bad steps in a row so far."""
        self.returns = 0

    def judge(self, norm: float) -> Verdict:
        """``norm``: of the whole gradient of a step, the same on all ranks."""
        if math.isfinite(norm):
            self.row = 0
            return Verdict.GOOD
        self.row += 1
        if self.row < self.limit:
            return Verdict.SKIPPED
        return Verdict.STOP if self.returns == RETURNS else Verdict.BACK

    def gone_back(self) -> None:
        self.returns += 1
        self.row = 0


def note(folder: Path, rank: int, step: int, loss: float, samples: Sequence[int]) -> None:
    """Add a bad step with this rank's samples to ``bad-steps.rank<R>.jsonl``.

    A disk that does not take it costs the line, never the run.
    """
    line = {"step": step, "loss": loss if math.isfinite(loss) else str(loss), "samples": samples}
    try:
        with (folder / f"bad-steps.rank{rank}.jsonl").open("a") as f:
            f.write(json.dumps(line) + "\n")
    except OSError:
        return
