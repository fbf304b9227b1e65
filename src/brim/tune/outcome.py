"""What one run of the job under one setting gave."""

from __future__ import annotations

from typing import Literal

import msgspec

from brim.record.applied import Knob as AppliedKnob
from brim.record.findings import Finding
from brim.record.ladder import Fate

Ending = Literal[
    "measured", "crashed", "hung", "out of memory", "not finite", "nothing measured"
]  # fmt: skip


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One run.  What was not seen is empty, never 0."""

    ending: Ending
    why: str = ""
    """Of an ending that is not ``measured``: the last thing that was seen."""
    folder: str = ""
    wall_s: float = 0.0
    steps: dict[int, float] = {}
    """Number of a steady step → seconds, the mean over ranks."""
    arms: dict[int, int] = {}
    """Number of a step → which of two settings was in effect, of a run that switched."""
    losses: dict[int, float | None] = {}
    """Number of a step → loss; null where it was not finite."""
    work: float | None = None
    """Samples, else tokens, of a step; of packed rows the tokens, which hardly vary."""
    packed: bool = False
    """Rows are filled with as many samples as fit."""
    figures: dict[str, float] = {}
    """As in ``Diagnosis.metrics``."""
    findings: list[Finding] = []
    frameworks: list[str] = []
    device: str = ""
    ranks: int = 1
    applied: list[AppliedKnob] = []
    """Of all ranks."""

    @property
    def on_device(self) -> bool:
        """It trained on an accelerator."""
        return bool(self.device) and "no accelerator" not in self.device

    @property
    def fate(self) -> Fate:
        """For the ladder, of a run that failed."""
        assert self.ending != "measured"
        return self.ending

    def missing(self, knobs: set[str]) -> dict[str, str]:
        """Those of ``knobs`` that were applied nowhere → why; none where nothing was said."""
        states: dict[str, list[AppliedKnob]] = {}
        for line in self.applied:
            states.setdefault(line.id, []).append(line)
        return {
            knob: lines[-1].reason or lines[-1].state
            for knob, lines in states.items()
            if knob in knobs and all(line.state != "applied" for line in lines)
        }
