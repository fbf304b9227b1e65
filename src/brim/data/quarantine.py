"""Where bad samples go: a file with path, line and reason; the run goes on.

A bad sample is the data's mistake, not the user's command, so ``BadSample`` is caught per sample
and becomes a line of the quarantine file.  Only when bad samples stop being an exception (above
1 % of what was seen, or 1,000) does the run end, with ``TooManyBadSamples``.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from brim.errors import InputError

# below this many seen samples a share says nothing: one bad file of 20 is not 5 % of the data
_GRACE = 10


class BadSample(Exception):
    """One sample cannot be used.  ``kind`` is a stable word to count by, the text says why."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind
        self.reason = reason
        self.image: str | None = None
        """The picture that is at fault, where it is one."""

    def __reduce__(self) -> tuple[type[BadSample], tuple[str, str], dict[str, str | None]]:
        return type(self), (self.kind, self.reason), {"image": self.image}


class TooManyBadSamples(InputError):
    """Bad samples are no longer an exception."""


class Where(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of a sample in its source; what is unknown is left out."""

    path: str
    line: int | None = None
    """From 1; the record's number where a source has no lines."""
    offset: int | None = None
    """Of the record's first byte."""

    def __str__(self) -> str:
        return self.path if self.line is None else f"{self.path}:{self.line}"


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of a quarantine file."""

    path: str
    kind: str
    reason: str
    line: int | None = None
    offset: int | None = None
    image: str | None = None


@dataclass(kw_only=True)
class Quarantine:
    """Counts bad samples and appends them to ``path`` (None: only counts).

    Each line is written by one ``write`` and flushed, so a killed process leaves whole lines.
    Thread-safe.
    """

    path: Path | None = None
    max_share: float = 0.01
    """Stop above this share of the samples seen."""
    max_count: int = 1000
    """Stop above this many."""
    counts: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _known: set[tuple[Where, str]] = field(default_factory=set, repr=False)

    def add(self, where: Where, bad: BadSample) -> None:
        """Record one bad sample; the same one again, in a later epoch, is not counted twice."""
        shown = None if bad.image is None else _shown(bad.image)
        entry = Entry(where.path, bad.kind, _shown(bad.reason), where.line, where.offset, shown)
        with self._lock:
            if (where, bad.kind) in self._known:
                return
            self._known.add((where, bad.kind))
            self.counts[bad.kind] += 1
            if self.path is not None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as f:
                    f.write(msgspec.json.encode(entry) + b"\n")

    @property
    def total(self) -> int:
        return self.counts.total()

    def check(self, seen: int) -> None:
        """Raise TooManyBadSamples when the bad ones of ``seen`` samples are too many."""
        allowed = min(self.max_count, max(self.max_share * seen, _GRACE))
        if self.total <= allowed:
            return
        kinds = ", ".join(f"{n} {kind}" for kind, n in self.counts.most_common(3))
        listed = f"they are listed in {self.path}; " if self.path else ""
        raise TooManyBadSamples(
            f"{self.total} of {seen} samples are bad ({kinds})",
            hint=f"{listed}raise data.max_bad_share or data.max_bad to go on without them",
        )


def read_quarantine(path: Path) -> Iterator[Entry]:
    """The whole lines of a quarantine file; a line cut by a crash is left out."""
    decoder = msgspec.json.Decoder(Entry)
    for line in path.read_bytes().split(b"\n")[:-1]:
        yield decoder.decode(line)


def _shown(text: str, limit: int = 300) -> str:
    """Hostile text made harmless for terminals and encodable: no control characters, bounded."""
    clean = "".join(c if c.isprintable() and not 0xD800 <= ord(c) < 0xE000 else "�" for c in text)
    return clean if len(clean) <= limit else f"{clean[:limit]}… ({len(clean)} characters)"
