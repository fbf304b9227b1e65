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

    ``lanes[i]`` is ``{"rank", "device": [row…], "host": [row…]}`` with rows
    ``[start, end, accent, label, name, idle]``: µs as floats, three indices into ``texts``, and 1
    where the device idles.  ``steps`` are starts of the first rank's steps in the drawn range.
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
            lane.append([s.start_us, s.end_us, accent, label, name, int(s.lane == "idle")])
    drawn = [s for s in segments if s.rank in lanes]
    start, end = min(s.start_us for s in drawn), max(s.end_us for s in drawn)
    return {
        "start": start,
        "end": end,
        "lanes": list(lanes.values()),
        "steps": _marks(steps, ranks[0], start, end),
        "texts": texts.all(),
    }


def _marks(steps: list[Step], rank: int, start: float, end: float) -> list[list[Any]]:
    return [
        [s.start_us, words.clean(s.name)]
        for s in steps
        if s.rank == rank and s.start_us is not None and start <= s.start_us <= end
    ]
