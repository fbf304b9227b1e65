"""One accent per family of causes, the same in the terminal and on the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from brim.diagnose.causes import COMPUTE, family
from brim.record.findings import Entry, Part


@dataclass(frozen=True, kw_only=True, slots=True)
class Accent:
    """How one family of causes is drawn."""

    label: str
    light: str
    """On a light page, at least 3:1 against white (WCAG 1.4.11)."""
    dark: str
    """On a dark page, at least 3:1 against the dark ground."""
    style: str
    """A style of rich that any 16-colour terminal knows."""


USEFUL: Final = "useful"
UNKNOWN: Final = "unknown"

ACCENTS: Final[dict[str, Accent]] = {
    USEFUL: Accent(label="compute", light="#1b7f6b", dark="#3fb89f", style="green"),
    "compute": Accent(label="busy, lost", light="#b07a10", dark="#dcab4a", style="yellow"),
    "comm": Accent(label="communication", light="#6f56b3", dark="#a590e6", style="magenta"),
    "transfer": Accent(label="copies", light="#2f74b8", dark="#6fb0ea", style="blue"),
    "input": Accent(label="input", light="#c4472b", dark="#f08466", style="red"),
    "host": Accent(label="host", light="#ad3f77", dark="#e584b2", style="bright_magenta"),
    "memory": Accent(label="memory", light="#6b7a1c", dark="#aebd5c", style="bright_yellow"),
    "device": Accent(label="device", light="#4d5f73", dark="#94a7bb", style="cyan"),
    UNKNOWN: Accent(label="unknown", light="#858b92", dark="#7d848c", style="bright_black"),
}

PARTS: Final[dict[Part, str]] = {
    "useful": "useful",
    "busy-lost": "busy, lost",
    "busy-not-computing": "busy, not computing",
    "idle": "idle",
    "unknown": "unknown",
}
"""In the order in which an account is drawn."""

# Adjacent slices must differ without colour; most ink first, for the largest slices come first.
GLYPHS: Final = "█▒░▓╱=╳+:•-~^"
ASCII_GLYPHS: Final = "#o.%/=x+:*-~^"


def accent_of(cause: str, part: Part | None = None) -> str:
    """The key into :data:`ACCENTS` for a cause, or for an entry of the account.

    A cause of a later version, whose family is not known here, is drawn as unknown.
    """
    if part == "useful" or (cause == COMPUTE and part is None):
        return USEFUL
    if cause == COMPUTE and part == "busy-not-computing":
        return "transfer"
    name = family(cause)
    return name if name in ACCENTS else UNKNOWN


def in_order(account: list[Entry]) -> list[Entry]:
    """Useful first, idle last; within a part the largest first."""
    rank = {part: position for position, part in enumerate(PARTS)}
    return sorted(account, key=lambda e: (rank[e.part], -e.share, e.cause))


def cells(shares: list[float], width: int) -> list[int]:
    """Divide ``width`` character cells by shares (largest remainder); the sum is ``width``.

    Nothing is drawn for shares without a sum.
    """
    total = sum(shares)
    if total <= 0 or width <= 0:
        return [0] * len(shares)
    exact = [share / total * width for share in shares]
    whole = [int(e) for e in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: whole[i] - exact[i])
    for i in by_remainder[: width - sum(whole)]:
        whole[i] += 1
    return whole
