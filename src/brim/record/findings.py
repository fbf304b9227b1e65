"""``findings.json``: what a diagnosis says, as data.

Every other part of brim (terminal, HTML, compare, tune, CI) reads this and nothing else, so the
same verdict looks the same everywhere.  Unknown fields of later versions are ignored on reading.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal

import msgspec

from brim.errors import InputError
from brim.files import write_atomic

VERSION = 1

Part = Literal["useful", "busy-lost", "busy-not-computing", "idle", "unknown"]
"""The level of the account an entry belongs to.

``useful``              the model's own FLOPs at the device's peak (only where both are known),
                        else the device's busy compute time
``busy-lost``           the device computes, but not useful work: padding, recompute, …
``busy-not-computing``  exposed communication, exposed copies
``idle``                the device waits
``unknown``             measured, and not to be told apart
"""

Confidence = Literal["high", "medium", "low"]


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=False):
    """One slice of the account."""

    part: Part
    cause: str
    """An id of ``causes``, or for the healthy part ``compute``."""
    share: float
    """Of the measured wall time; all entries of an account sum to 1."""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """A line of the user's code."""

    file: str
    line: int
    function: str = ""


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to change, in the words of each framework."""

    id: str
    summary: str
    lossless: bool
    """True when the numbers that the training computes stay the same up to rounding."""
    settings: dict[str, str]
    """Framework (``torch``, ``hf-trainer``, ``lightning``, ``ms-swift``, ``llama-factory``,
    ``brim``) → the setting as the user types it."""
    memory: str = ""
    """What it costs in memory; empty when nothing."""


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One cause, with what it costs and what shows it."""

    cause: str
    share: float
    gain: tuple[float, float]
    """Speed-up when it is cured: (what hides behind it takes over, the time simply goes away)."""
    confidence: Confidence
    evidence: list[str]
    where: Where | None = None
    remedies: list[Remedy] = []
    facts: dict[str, float | int | str] = {}
    """Named figures that the remedies were worded with: ``workers``, ``pad_share``, …"""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured."""

    steps: int
    wall_s: float
    ranks: int
    chosen: str = ""
    """How the window was chosen, in words."""


class DeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    """Exact device times of one window on one rank, in µs (never rounded below a nanosecond).

    ``compute_us + exposed_comm_us + exposed_copy_us == busy_us``; ``busy_us + idle_us ==
    window_us``.
    """

    window_us: float
    busy_us: float
    idle_us: float
    compute_us: float
    exposed_comm_us: float
    exposed_copy_us: float


class RankDeviceTime(msgspec.Struct, frozen=True, kw_only=True):
    rank: int
    kernel_span: DeviceTime
    """First device event to last device event."""
    step_window: DeviceTime | None
    """Start of the first ``ProfilerStep`` to the end of the last device event."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of ``findings.json``."""

    version: int = VERSION
    verdict: str = ""
    """One sentence."""
    window: Window
    account: list[Entry]
    findings: list[Finding]
    device_time: list[RankDeviceTime] = []
    device: str = ""
    """``NVIDIA H200``, or ``the training thread (no accelerator)``."""
    frameworks: list[str] = []
    """Frameworks seen in the job, most specific first; remedies are shown in the first's words."""
    metrics: dict[str, float] = {}
    """Named figures: ``step_s`` (median), ``samples_per_s``, ``tokens_per_s``, ``mfu``,
    ``gpu_util``, ``sm_active``, ``tensor_active``, ``overhead``, … absent when not measured."""
    notes: list[str] = []
    """What was not measured, and why; warnings."""
    details: dict[str, Any] = {}
    """Tables for the long report: ``kernels``, ``ranks``, ``steps``, ``modules``, ``timeline``."""


def broken_rule(diagnosis: Diagnosis) -> str:
    """The rule of the account that does not hold, or nothing: it sums to 1, no share is negative,
    findings stand in order."""
    total = math.fsum(e.share for e in diagnosis.account)
    if not abs(total - 1.0) < 1e-9:
        return f"the account sums to {total!r}"
    if any(e.share < 0 for e in diagnosis.account):
        return "a negative share"
    shares = [f.share for f in diagnosis.findings]
    return "" if shares == sorted(shares, reverse=True) else "findings are not ordered by share"


def check(diagnosis: Diagnosis) -> Diagnosis:
    """Assert the rules of the account (for programmers)."""
    broken = broken_rule(diagnosis)
    assert not broken, broken
    return diagnosis


def encode(diagnosis: Diagnosis) -> bytes:
    """Indented JSON, newline at the end."""
    return msgspec.json.format(msgspec.json.encode(diagnosis), indent=2) + b"\n"


def write(path: Path, diagnosis: Diagnosis) -> None:
    write_atomic(path, encode(check(diagnosis)))


def read(path: Path) -> Diagnosis:
    """Raises :class:`InputError` when the file is not a diagnosis, or one of a later brim."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Diagnosis)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a findings.json ({error})") from None
    if found.version > VERSION:
        raise InputError(
            f"{path}: written by a later brim (version {found.version} of the file)",
            hint=f"this brim reads version {VERSION}: update it",
        )
    broken = broken_rule(found)
    if broken:
        raise InputError(f"{path}: not a findings.json that brim wrote ({broken})")
    return found
