"""The timeline as compact data for the page's script: tables of texts, rows of integers."""

from __future__ import annotations

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
Row = tuple[float, float, int, int, int, int]
"""Start and end in µs; accent, label and name as positions in the texts; 1 where idle."""

_DEVICE: Final = {"compute": USEFUL, "comm": "comm", "copy": "transfer"}


def _accent(segment: Segment) -> str:
    if segment.lane == "device":
        return _DEVICE.get(segment.label, UNKNOWN)
    if segment.lane == "idle":
        return accent_of(segment.label)
    return _HOST.get(segment.label, "python")


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

    ``lanes[i]`` is ``{"rank", "device": [Row…], "host": [Row…]}``, rows disjoint and in order;
    ``steps`` are the starts and names of the first rank's steps in the drawn range.
    """
    if not segments:
        return None
    texts = _Texts()
    ranks = sorted({s.rank for s in segments})[:MAX_RANKS]
    lanes: dict[int, dict[str, Any]] = {r: {"rank": r, "device": [], "host": []} for r in ranks}
    for s in sorted(segments, key=lambda s: s.start_us):
        if s.rank in lanes and s.end_us > s.start_us:
            lane = lanes[s.rank]["host" if s.lane == "host" else "device"]
            label, name = texts.at(s.label), texts.at(s.name)
            accent = texts.at(_accent(s))
            lane.append((s.start_us, s.end_us, accent, label, name, int(s.lane == "idle")))
    for lane in lanes.values():
        lane["device"] = _one_lane(lane["device"])
        lane["host"] = _disjoint(lane["host"])
    drawn = [s for s in segments if s.rank in lanes]
    start, end = min(s.start_us for s in drawn), max(s.end_us for s in drawn)
    return {
        "start": start,
        "end": end,
        "lanes": list(lanes.values()),
        "steps": _marks(steps, ranks[0], start, end),
        "texts": texts.all(),
    }


def _one_lane(rows: list[Row]) -> list[Row]:
    """Busy and idle rows made disjoint: neighbours were merged on either side, and idle wins."""
    idle = _disjoint([row for row in rows if row[5]])
    busy = _disjoint([row for row in rows if not row[5]])
    return sorted([*idle, *_cut(busy, idle)], key=lambda row: row[0])


def _disjoint(rows: list[Row]) -> list[Row]:
    """Rows in order of start, each cut to begin after the one before."""
    out: list[Row] = []
    for row in rows:
        start = max(row[0], out[-1][1]) if out else row[0]
        if row[1] > start:
            out.append((start, *row[1:]))
    return out


def _cut(rows: list[Row], gaps: list[Row]) -> list[Row]:
    """What is left of ``rows`` outside ``gaps``; both disjoint and in order."""
    out: list[Row] = []
    first = 0
    for row in rows:
        start, end = row[:2]
        while first < len(gaps) and gaps[first][1] <= start:
            first += 1
        k = first
        while k < len(gaps) and gaps[k][0] < end:
            if gaps[k][0] > start:
                out.append((start, gaps[k][0], *row[2:]))
            start = gaps[k][1]
            k += 1
        if end > start:
            out.append((start, end, *row[2:]))
    return out


def _marks(steps: list[Step], rank: int, start: float, end: float) -> list[list[Any]]:
    return [
        [s.start_us, words.clean(s.name)]
        for s in steps
        if s.rank == rank and s.start_us is not None and start <= s.start_us <= end
    ]
