"""``loader.rank*.jsonl``: what brim's own loader did, a window of about two seconds a line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from brim.record.lines import read_lines


class LoaderLine(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="kind", tag="window"):
    """One window; seconds, counts, bytes."""

    t: float
    """Its end, CLOCK_MONOTONIC."""
    wall: float
    rank: int = 0
    rows: int = 0
    """Rows that the trainer took."""
    samples: int = 0
    images: int = 0
    waited: float = 0.0
    """Time in which the trainer waited for rows."""
    threads: int = 0
    depth: int = 0
    """Rows in work or ready, at most."""
    ready: float = 0.0
    """Share of the depth that was ready when the trainer asked."""
    stages: dict[str, float] = {}
    """Thread time by stage: read, text, decode, resize, cache, write."""
    task_wall: float = 0.0
    task_cpu: float = 0.0
    bound_by: str = ""
    """What limits the rate; ``consumer`` when nothing does."""
    change: str = ""
    """What was changed at its end, and why."""
    bad: int = 0
    """Bad samples so far."""
    cache_hits: int = 0
    cache_misses: int = 0
    nvjpeg_error: float | None = None
    """Mean difference of nvJPEG's pixels from the exact ones, in grey levels of 255, over the first
    pictures; None where it is not used."""


class LoaderDeath(msgspec.Struct, kw_only=True, omit_defaults=True, tag_field="kind", tag="death"):
    """The loader process died and was started again at the same row."""

    t: float
    rank: int = 0
    step: int = 0
    exit_code: int | None = None
    """Negative: the signal that killed it; None: it hung and was killed."""
    suspects: list[int] = []
    """Samples that its threads were at."""


class LoaderRecord(msgspec.Struct):
    """A whole file."""

    windows: list[LoaderLine]
    deaths: list[LoaderDeath]


def read_loader(path: Path) -> LoaderRecord:
    """All whole lines; an absent file is a run without brim's loader."""
    record = LoaderRecord([], [])
    if not path.exists():
        return record
    for kind, line in read_lines(path):
        if kind == "window":
            record.windows.append(msgspec.json.decode(line, type=LoaderLine))
        elif kind == "death":
            record.deaths.append(msgspec.json.decode(line, type=LoaderDeath))
    return record


def append(path: Path, line: LoaderLine | LoaderDeath) -> None:
    """One line in one write, so that a killed process leaves whole lines."""
    with path.open("ab", buffering=0) as f:
        f.write(msgspec.json.encode(line) + b"\n")
