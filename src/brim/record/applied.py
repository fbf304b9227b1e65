"""``applied.rank<R>.jsonl``: what became of the settings that a job was started with.

Two kinds of lines, each with the ``pid`` that wrote it:

* ``knob``: a knob was applied, was unavailable or failed, why, and which value it replaced;
* ``error``: the exception that ended the process.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any, Literal

import msgspec

from brim.record.lines import read_lines

State = Literal["applied", "unavailable", "failed"]
_RANK = {"unavailable": 0, "applied": 1, "failed": 2}
_MEMORY = ("OutOfMemoryError", "MemoryError")


class Knob(msgspec.Struct, kw_only=True, frozen=True):
    """One knob in one process; a later line of the same process replaces an earlier one."""

    id: str
    state: State
    reason: str = ""
    """Why not; of an applied one, what is worth knowing."""
    was: Any = None
    """The job's own value; None where it had none, or none is known."""
    value: Any = None
    pid: int = 0


class Error(msgspec.Struct, kw_only=True, frozen=True):
    """An exception that nobody caught."""

    name: str
    text: str = ""
    pid: int = 0

    @property
    def out_of_memory(self) -> bool:
        return self.name in _MEMORY or "out of memory" in self.text.lower()


class Applied(msgspec.Struct, kw_only=True):
    """One rank's file."""

    knobs: dict[str, Knob] = {}
    """By id.  Of several processes the one with the most to say: failed, applied, unavailable."""
    error: Error | None = None


def file_name(rank: int) -> str:
    return f"applied.rank{rank}.jsonl"


def read_applied(path: Path) -> Applied:
    """Empty when the job was started without settings."""
    found = Applied()
    if not path.exists():
        return found
    latest: dict[tuple[int, str], Knob] = {}
    for kind, line in read_lines(path):
        with contextlib.suppress(msgspec.ValidationError):  # not a line of this version
            if kind == "knob":
                knob = msgspec.json.decode(line, type=Knob)
                latest[knob.pid, knob.id] = knob
            elif kind == "error":
                found.error = msgspec.json.decode(line, type=Error)
    for knob in latest.values():
        known = found.knobs.get(knob.id)
        if known is None or _RANK[knob.state] > _RANK[known.state]:
            found.knobs[knob.id] = knob
    return found
