"""What a rule hands on: a cause, what it costs, and what shows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.diagnose.causes import REPORTED_FROM
from brim.record.findings import Confidence, Where
from brim.record.steps import Frame


@dataclass(frozen=True, kw_only=True, slots=True)
class Clue:
    """Seconds of one rank's window that one cause explains."""

    cause: str
    seconds: float
    evidence: tuple[str, ...]
    confidence: Confidence = "high"
    where: Where | None = None
    after: float | None = None
    """Seconds of the window that stay lost in the same place when it is cured, where known."""
    once: bool = False
    """The seconds lie before the window; they are added to what was seen."""
    report_from: float = REPORTED_FROM
    """Share of the time below which it is a price that everybody pays, and no finding."""
    for_other: bool = False
    """The rank waits in a collective for another one that does this."""
    facts: dict[str, float | int | str] = field(default_factory=dict)
    """Named figures for the remedies: ``workers``, ``pad_share``, …"""


def where(frame: Frame | None) -> Where | None:
    """A line of the user's code as the report names it."""
    if frame is None or frame.line <= 0:
        return None
    return Where(file=frame.file, line=frame.line, function=frame.function)
