"""What ``brim tune`` found, as data: before, each step that was kept, after, and what was not.

The terminal, the page and ``--json`` show this and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from brim.errors import InputError
from brim.record.findings import Finding

VERSION = 1

Value = bool | int | str
Ended = Literal["ceiling", "nothing left", "budget", "interrupted"]
"""No cause takes 5 % any more; no remedy is left that can be applied from outside; the time was
up; Ctrl-C."""
Fate = Literal[
    "no gain", "not beyond the noise", "loss differs", "crashed", "hung", "out of memory",
    "not finite", "nothing measured", "not applied", "not needed", "undecided",
]  # fmt: skip


class Speedup(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast, by runs of both in turn."""

    ratio: float
    """Of the mean times of the same work."""
    low: float
    high: float
    """99 % interval; it holds the noise between steps and that between runs."""
    median: float
    """Of the ratios of single steps."""
    pairs: int
    """Pairs of runs; of blocks of steps where one run switched between both."""
    steps: int
    """Pairs of steps in them."""
    switched: bool = False
    """Measured inside one run."""


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Of one setting, means over its runs; null where it was not measured."""

    step_s: float | None = None
    samples_per_s: float | None = None
    tokens_per_s: float | None = None
    gpu_util: float | None = None
    tensor_active: float | None = None
    mfu: float | None = None
    input_wait: float | None = None
    """Share of the time in which the loop waits for its loader."""


class Rung(msgspec.Struct, frozen=True, kw_only=True):
    """One step that was kept."""

    words: str
    settings: dict[str, Value]
    """What it changed."""
    cause: str
    """What it cures; empty where it was tried without a finding."""
    speed: Speedup
    """Against the rung before."""
    figures: Figures
    loss: str = ""
    """How the losses of the compared steps relate."""
    alone: Speedup | None = None
    """Against all other rungs without it, at the end; null where that was not measured."""


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """One that was tried and undone."""

    words: str
    settings: dict[str, Value]
    cause: str
    fate: Fate
    why: str
    speed: Speedup | None = None


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What to do for good."""

    command: list[str] = []
    """The command with the kept settings, to be run without brim; empty where it stays as it is."""
    environment: dict[str, str] = {}
    patch: str = ""
    """Of a YAML or TOML file, as a unified diff."""
    code: list[str] = []
    """Changes that only code can make, in words."""


class Ladder(msgspec.Struct, frozen=True, kw_only=True):
    """The whole result."""

    version: int = VERSION
    command: list[str]
    """Secrets are replaced by ``***``."""
    device: str = ""
    frameworks: list[str] = []
    """Most specific first; what remains is worded for the first."""
    before: Figures
    rungs: list[Rung] = []
    total: Speedup | None = None
    """After against before; null where nothing was kept."""
    rejected: list[Rejected] = []
    settings: dict[str, Value] = {}
    """All that was kept."""
    change: Change = Change()
    remaining: list[Finding] = []
    """Causes that still take their share; their remedies need the user."""
    ended: Ended
    runs: int
    """Runs of the job that were measured."""
    wall_s: float
    """Time they took."""
    notes: list[str] = []


def read(path: Path) -> Ladder:
    """Raises :class:`InputError` when the file is not a ladder."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Ladder)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a ladder ({error})") from None


def encode(ladder: Ladder) -> bytes:
    """Indented JSON, newline at the end."""
    return msgspec.json.format(msgspec.json.encode(ladder), indent=2) + b"\n"
