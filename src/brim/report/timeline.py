"""The timeline as compact data for the page's script: tables of texts, rows of integers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from brim.diagnose.trace.tables import Segment
from brim.report import words
from brim.report.palette import UNKNOWN, USEFUL, accent_of
from brim.report.tables import Step

MAX_RANKS: Final = 16
"""More lanes than this are not read; the table of ranks has them all."""

_HOST: Final = {
    "input": "input",
    "sync": "host",
    "memory": "memory",
    "copy": "transfer",
    "compile": "host",
    "gc": "host",
    "save": "host",
    "launch": "launch",
    "op": "launch",
}
Row = tuple[float, float, int, int, int]
"""Start and end in µs; accent, label and name as positions in the texts."""

_DEVICE: Final = {"compute": USEFUL, "comm": "comm", "copy": "transfer"}


def _accent(segment: Segment) -> str:
    if segment.lane == "device":
        return _DEVICE.get(segment.label, UNKNOWN)
    if segment.lane == "idle":
        return accent_of(segment.label)
    return _HOST.get(segment.label, "python")


@dataclass(kw_only=True, slots=True)
class _Lanes:
    """One rank."""

    rank: int
    device: list[Row] = field(default_factory=list)
    idle: list[Row] = field(default_factory=list)
    host: list[Row] = field(default_factory=list)


class _Texts:
    """Each text once; rows refer to it by position."""

    def __init__(self) -> None:
        self._at: dict[str, int] = {}

    def at(self, text: str) -> int:
        return self._at.setdefault(words.clean(text), len(self._at))

    def all(self) -> list[str]:
        return list(self._at)


def timeline(segments: list[Segment], steps: list[Step]) -> dict[str, Any] | None:
    """Data for ``report.js``; None where there is nothing to draw.

    ``lanes[i]`` is ``{"rank", "device": [Row…], "idle": [Row…], "host": [Row…]}``, each disjoint
    and in order.  Where ``device`` and ``idle`` overlap both happen, in pieces that were merged
    because they are finer than the record.  ``steps`` are the starts and names of the first rank's
    steps in the drawn range.
    """
    if not segments:
        return None
    texts = _Texts()
    ranks = sorted({s.rank for s in segments})[:MAX_RANKS]
    lanes = {r: _Lanes(rank=r) for r in ranks}
    for s in sorted(segments, key=lambda s: s.start_us):
        if s.rank in lanes:
            label, name, accent = texts.at(s.label), texts.at(s.name), texts.at(_accent(s))
            getattr(lanes[s.rank], s.lane).append((s.start_us, s.end_us, accent, label, name))
    for lane in lanes.values():
        lane.device, lane.idle, lane.host = map(_disjoint, (lane.device, lane.idle, lane.host))
    drawn = [s for s in segments if s.rank in lanes]
    start, end = min(s.start_us for s in drawn), max(s.end_us for s in drawn)
    return {
        "start": start,
        "end": end,
        "lanes": [asdict(lane) for lane in lanes.values()],
        "steps": _marks(steps, ranks[0], start, end),
        "texts": texts.all(),
    }


def _disjoint(rows: list[Row]) -> list[Row]:
    """Rows in order of start, each cut to begin after the one before."""
    out: list[Row] = []
    for row in rows:
        start = max(row[0], out[-1][1]) if out else row[0]
        if row[1] > start:
            out.append((start, *row[1:]))
    return out


def _marks(steps: list[Step], rank: int, start: float, end: float) -> list[list[Any]]:
    return [
        [s.start_us, words.clean(s.name)]
        for s in steps
        if s.rank == rank and s.start_us is not None and start <= s.start_us <= end
    ]
