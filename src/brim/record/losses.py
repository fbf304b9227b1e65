"""The loss of each step of one training process, where it was recorded."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from brim.record.lines import decoded
from brim.record.steps import Process


class LossLine(msgspec.Struct, kw_only=True):
    """A line of ``losses.rank<R>.<PID>.jsonl``."""

    n: int
    """Number of the step, as in ``steps.*.jsonl``."""
    loss: float | None = None
    """Sum over the step's backward passes; null where it was not finite."""


def read_losses(folder: Path, process: Process) -> dict[int, float]:
    """Step → loss (NaN where it was not finite); empty where no loss was recorded.

    ``brim train`` has it in its step lines, hooks write a file of their own.
    """
    own = {s.n: s.loss for s in process.steps if s.loss is not None}
    if own:
        return own
    path = folder / f"losses.rank{process.header.rank}.{process.header.pid}.jsonl"
    lines: list[LossLine] = []
    with contextlib.suppress(FileNotFoundError):
        lines = list(decoded(path, LossLine))
    return {line.n: float("nan") if line.loss is None else line.loss for line in lines}
