"""What a scan finds, in columns: small, quick to save, quick to lay a plan on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from brim.data.quarantine import BadSample
from brim.data.store import Stamp


@dataclass(slots=True)
class Columns:
    """Samples in columns; pictures in columns of their own, in the samples' order."""

    record: NDArray[np.int64]
    """Number of the record in its source."""
    text: NDArray[np.int32]
    """Tokens that are not visual."""
    scored: NDArray[np.int32]
    """Tokens that are learnt."""
    tail: NDArray[np.int32]
    """Tokens after the last visual one (all, where there is none)."""
    tail_scored: NDArray[np.int32]
    """Number, in the tail, of its first learnt token; the tail's length where there is none."""
    pictures: NDArray[np.int32]
    height: NDArray[np.int32]
    """Of each picture, upright, in its file."""
    width: NDArray[np.int32]
    frames: NDArray[np.int32]
    """Of a video, as many as are taken; 0 for an image."""
    size: NDArray[np.int64]
    """Bytes of its file; 0 for what cannot change by itself."""
    mtime: NDArray[np.int64]
    ref_end: NDArray[np.int64]
    """Where the picture's name ends in ``refs``."""
    refs: NDArray[np.uint8]
    """The names of all pictures (of a video its first frame's), UTF-8, one after the other."""

    @classmethod
    def of(cls, samples: Sequence[ScannedSample]) -> Columns:
        pictures = [p for s in samples for p in s.pictures]
        names = [p.name.encode(errors="surrogatepass") for p in pictures]

        def column(values: Iterable[int], kind: type) -> Any:
            return np.fromiter(values, dtype=kind)

        return cls(
            record=column((s.record for s in samples), np.int64),
            text=column((s.text for s in samples), np.int32),
            scored=column((s.scored for s in samples), np.int32),
            tail=column((s.tail for s in samples), np.int32),
            tail_scored=column((s.tail_scored for s in samples), np.int32),
            pictures=column((len(s.pictures) for s in samples), np.int32),
            height=column((p.height for p in pictures), np.int32),
            width=column((p.width for p in pictures), np.int32),
            frames=column((p.frames for p in pictures), np.int32),
            size=column((p.stamp.size for p in pictures), np.int64),
            mtime=column((p.stamp.mtime_ns for p in pictures), np.int64),
            ref_end=np.cumsum([len(n) for n in names], dtype=np.int64),
            refs=np.frombuffer(b"".join(names), np.uint8),
        )

    @classmethod
    def joined(cls, parts: Sequence[Columns]) -> Columns:
        shift = np.cumsum([0, *(len(p.refs) for p in parts[:-1])])
        moved = [p.ref_end + s for p, s in zip(parts, shift, strict=True)]
        columns = {f.name: np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(cls)}
        return cls(**{**columns, "ref_end": np.concatenate(moved)})

    def names(self) -> Iterator[str]:
        """The name of each picture."""
        blob, start = self.refs.tobytes(), 0
        for end in self.ref_end.tolist():
            yield blob[start:end].decode(errors="surrogatepass")
            start = end


@dataclass(frozen=True, slots=True)
class ScannedPicture:
    """One image or video."""

    name: str
    height: int
    width: int
    frames: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class ScannedSample:
    """One record; its fields are those of :class:`Columns`."""

    record: int
    text: int
    scored: int
    tail: int
    tail_scored: int
    pictures: tuple[ScannedPicture, ...]


class Bad(msgspec.Struct, frozen=True, array_like=True):
    """A record that the scan refused."""

    record: int
    kind: str
    reason: str
    image: str | None = None

    def as_sample(self) -> BadSample:
        bad = BadSample(self.kind, self.reason)
        bad.image = self.image
        return bad


@dataclass(slots=True)
class Scan:
    """One source, scanned."""

    columns: Columns
    bad: list[Bad]
    skipped: Counter[str] = field(default_factory=Counter)
    """Records with nothing to learn, by kind."""
    notes: Counter[str] = field(default_factory=Counter)
    """Oddities that are taken as they are."""
    records: int = 0
    cached: bool = False


def joined(parts: Sequence[Scan]) -> Scan:
    """Scans of parts of a source, in their order, as one."""
    result = Scan(Columns.joined([p.columns for p in parts]), [b for p in parts for b in p.bad])
    for part in parts:
        result.skipped += part.skipped
        result.notes += part.notes
        result.records += part.records
    return result


def selected(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    """Some of the samples."""
    return reordered(columns, np.flatnonzero(keep))


def reordered(columns: Columns, order: NDArray[np.int64]) -> Columns:
    """The samples ``order``, their pictures with them."""
    starts = np.concatenate([[0], np.cumsum(columns.pictures)])
    pictures = _ranges(starts[order], columns.pictures[order])
    name_starts = np.concatenate([[0], columns.ref_end[:-1]]).astype(np.int64)[
        : len(columns.height)
    ]
    lengths = columns.ref_end - name_starts
    letters = _ranges(name_starts[pictures], lengths[pictures])
    return Columns(
        **{n: getattr(columns, n)[order] for n in _PER_SAMPLE},
        **{n: getattr(columns, n)[pictures] for n in _PER_PICTURE},
        ref_end=np.cumsum(lengths[pictures]),
        refs=columns.refs[letters],
    )


def _ranges(starts: NDArray[np.int64], lengths: NDArray[np.integer]) -> NDArray[np.int64]:
    """All numbers of all ranges, one after the other."""
    total = int(lengths.sum())
    before = np.cumsum(lengths) - lengths
    return np.arange(total) + np.repeat(starts - before, lengths)


_PER_SAMPLE = ("record", "text", "scored", "tail", "tail_scored", "pictures")
_PER_PICTURE = ("height", "width", "frames", "size", "mtime")
