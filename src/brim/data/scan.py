"""What the plan must know of every sample: token counts and picture sizes, read once.

Texts are tokenized and image headers read (nothing is decoded) by one process per usable core.
The result is kept beside the data and taken again as long as the content is the same: the
annotation file by its bytes, each picture by size and time.  Settings of the plan (row length,
pixel limits, seed) are no part of it; changing them costs nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, fields
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as connections_ready
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from brim.data.chat import Clip, Conversation, Image, NothingToLearn, Video, name_of
from brim.data.decode import DecodePolicy, check_size
from brim.data.geometry import check_aspect
from brim.data.header import Header
from brim.data.helper import start
from brim.data.lines import Lines
from brim.data.quarantine import BadSample, Quarantine
from brim.data.sources import Source
from brim.data.store import Stamp
from brim.data.tokens import ChatTokens, Encoded
from brim.data.video import Sampling, chosen, has_files
from brim.errors import BrimError, InputError
from brim.files import write_atomic

VERSION = 2
_CHUNK = 512
_HEADER_THREADS = 8  # hides the latency of a disk or a network; the parsing itself is too short

Progress = Callable[[int, int], None]
"""Called with (records done, records in all)."""


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
    def of(cls, samples: Sequence[_Sample]) -> Columns:
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
class _Picture:
    name: str
    height: int
    width: int
    frames: int
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class _Sample:
    record: int
    text: int
    scored: int
    tail: int
    tail_scored: int
    pictures: tuple[_Picture, ...]


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


def scan(
    sources: Sequence[Source],
    tokens: ChatTokens,
    policy: DecodePolicy,
    *,
    sampling: Sampling | None = None,
    cache: Sequence[Path],
    quarantine: Quarantine,
    processes: int,
    progress: Progress = lambda done, total: None,
) -> list[Scan]:
    """Scan each source, or take what an earlier scan left in its folder of ``cache``.

    Bad records go to ``quarantine``; raises TooManyBadSamples when they are too many.
    """
    sampling = sampling or Sampling()
    total, done = sum(map(len, sources)), 0
    results = []
    for source, folder in zip(sources, cache, strict=True):
        path = folder / f"scan-{_key(source, tokens, policy, sampling)}.npz"
        start = done

        def report(count: int, start: int = start) -> None:
            progress(start + count, total)

        with _alone(folder):
            result = _load(path, source)
            work = _Work(source, tokens, policy, sampling)
            if result is None:
                result = _scan_source(work, processes, report)
                _save(path, result)
            elif changed := _changed(source, result.columns):
                _rescan(result, changed, work)
                _save(path, result)
        done += len(source)
        progress(done, total)
        for bad in result.bad:
            quarantine.add(source.records.where(bad.record), bad.as_sample())
        results.append(result)
    quarantine.check(total)
    return results


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process of a host scans, the other ranks wait and then read what it has saved."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        # a file system without locks only means that the ranks scan side by side
        with contextlib.suppress(OSError):
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@dataclass(frozen=True, slots=True)
class _Work:
    """What a scanning process needs."""

    source: Source
    tokens: ChatTokens
    policy: DecodePolicy
    sampling: Sampling

    def scan(self, records: Sequence[int]) -> Scan:
        """Scan some records of the source."""
        result = Scan(Columns.of([]), [])
        read: list[tuple[int, Conversation, Encoded]] = []
        for number in records:
            try:
                conversation = self.source.conversation(number)
                if has_files(conversation):
                    conversation = chosen(conversation, self.source.store, self.sampling)
                read.append((number, conversation, self.tokens.encode(conversation)))
            except NothingToLearn as skip:
                result.skipped[skip.kind] += 1
            except BadSample as bad:
                result.bad.append(Bad(number, bad.kind, bad.reason, bad.image))
            if isinstance(self.source.records, Lines):
                result.notes.update(self.source.records.oddities(number))
        pictures = self._headers([c for _, c, _ in read])
        samples = []
        for (number, _, encoded), found in zip(read, pictures, strict=True):
            if isinstance(found, Bad):
                result.bad.append(msgspec.structs.replace(found, record=number))
            else:
                samples.append(_sample(number, encoded, found))
        result.columns = Columns.of(samples)
        result.records = len(records)
        return result

    def _headers(
        self, conversations: Sequence[Conversation]
    ) -> Iterator[tuple[_Picture, ...] | Bad]:
        if not any(True for c in conversations for _ in c.pictures()):
            return iter([()] * len(conversations))
        size = -(-len(conversations) // _HEADER_THREADS)
        parts = [conversations[at : at + size] for at in range(0, len(conversations), size)]
        with ThreadPoolExecutor(_HEADER_THREADS) as pool:
            return itertools.chain.from_iterable(
                list(pool.map(lambda part: [self._pictures(c) for c in part], parts))
            )

    def _pictures(self, conversation: Conversation) -> tuple[_Picture, ...] | Bad:
        found = []
        for part in conversation.pictures():
            try:
                found.append(self._picture(part))
            except BadSample as bad:
                return Bad(0, bad.kind, bad.reason, name_of(part))
        return tuple(found)

    def _picture(self, part: Image | Video) -> _Picture:
        if isinstance(part, Video) and part.clip is not None:
            return self._clip(part, part.clip)
        first = part.ref if isinstance(part, Image) else part.frames[0]
        header, stamp = self.source.store.header(first)
        check_size(header, self.policy)
        height, width = header.upright(self.policy.rotate)
        check_aspect(height, width)
        frames = 0 if isinstance(part, Image) else len(part.frames)
        if frames == 1:
            raise BadSample("video.too-short", "a video of 1 frame; at least 2 are needed")
        return _Picture(name_of(part), height, width, frames, stamp)

    def _clip(self, part: Video, clip: Clip) -> _Picture:
        check_size(Header("video", clip.width, clip.height), self.policy)
        check_aspect(clip.height, clip.width)
        assert part.file is not None
        stamp = self.source.store.stamp(part.file) or Stamp(0, 0)
        return _Picture(name_of(part), clip.height, clip.width, len(clip.frames), stamp)


def _sample(number: int, encoded: Encoded, pictures: tuple[_Picture, ...]) -> _Sample:
    tail_start = encoded.blocks[-1][0] if encoded.blocks else 0
    tail = encoded.scored[tail_start:]
    first = int(tail.argmax()) if tail.any() else len(tail)
    scored = int(encoded.scored.sum())
    return _Sample(number, len(encoded.ids), scored, len(tail), first, pictures)


def serve(connection: Connection) -> None:
    """Entry of a scanning process: scans the ranges that it is sent, until the connection ends."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        work: _Work = connection.recv()
        while True:
            try:
                answer: Scan | _Refused = work.scan(connection.recv())
            except BrimError as error:
                answer = _Refused(str(error.args[0]), error.hint)
            connection.send(answer)


@dataclass(frozen=True, slots=True)
class _Refused:
    """A scanning process met what the user has to change: a package that is missing, say."""

    what: str
    hint: str


def _scan_in_processes(
    work: _Work, chunks: Sequence[range], processes: int
) -> Iterator[tuple[range, Scan]]:
    """The chunks in their order, scanned by ``processes`` helpers."""
    helpers = [start(__name__, "serve") for _ in range(min(processes, len(chunks)))]
    waiting = iter(enumerate(chunks))
    at: dict[Connection, int] = {}
    done: dict[int, Scan] = {}
    try:
        for _, connection in helpers:
            connection.send(work)
            at[connection], chunk = next(waiting)
            connection.send(chunk)
        for number, chunk in enumerate(chunks):
            while number not in done:
                for ready in connections_ready(list(at)):
                    assert isinstance(ready, Connection)
                    answer: Scan | _Refused = ready.recv()
                    if isinstance(answer, _Refused):
                        raise InputError(answer.what, hint=answer.hint)
                    done[at.pop(ready)] = answer
                    if (following := next(waiting, None)) is not None:
                        at[ready], _ = following
                        ready.send(following[1])
            yield chunk, done.pop(number)
    except (EOFError, OSError) as error:
        raise BrimError(
            f"a process that reads headers and texts died ({error or 'no message'})",
            hint="its last words, if any, stand above; the kernel's log tells of missing memory",
        ) from None
    finally:
        for process, connection in helpers:
            connection.close()
            process.wait()


def _scan_source(work: _Work, processes: int, report: Callable[[int], None]) -> Scan:
    source = work.source
    chunks = [range(at, min(at + _CHUNK, len(source))) for at in range(0, len(source), _CHUNK)]
    parts = []
    if processes < 2 or len(chunks) < 4:  # a new process costs a second
        for chunk in chunks:
            parts.append(work.scan(chunk))
            report(chunk.stop)
        return _joined(parts)
    for chunk, part in _scan_in_processes(work, chunks, processes):
        parts.append(part)
        report(chunk.stop)
    return _joined(parts)


def _joined(parts: Sequence[Scan]) -> Scan:
    result = Scan(Columns.joined([p.columns for p in parts]), [b for p in parts for b in p.bad])
    for part in parts:
        result.skipped += part.skipped
        result.notes += part.notes
        result.records += part.records
    return result


def _key(source: Source, tokens: ChatTokens, policy: DecodePolicy, sampling: Sampling) -> str:
    """Of all that a scan depends on."""
    parts = (
        VERSION,
        source.records.fingerprint(),
        tokens.fingerprint,
        source.store.root,
        policy.max_file_pixels,
        policy.rotate,
        sampling,
    )
    return xxhash.xxh3_64_hexdigest(repr(parts).encode())


def _save(path: Path, result: Scan) -> None:
    buffer = io.BytesIO()
    about = msgspec.json.encode(
        {
            "bad": result.bad,
            "skipped": result.skipped,
            "notes": result.notes,
            "records": result.records,
        }
    )
    columns = {f.name: getattr(result.columns, f.name) for f in fields(Columns)}
    np.savez(buffer, about=np.frombuffer(about, np.uint8), **columns)
    write_atomic(path, buffer.getvalue())


class _About(msgspec.Struct):
    bad: list[Bad]
    skipped: dict[str, int]
    notes: dict[str, int]
    records: int


def _load(path: Path, source: Source) -> Scan | None:
    """An earlier scan of the same content; None when there is none that can be read."""
    try:
        with np.load(path, allow_pickle=False) as saved:
            about = msgspec.json.decode(saved["about"].tobytes(), type=_About)
            columns = Columns(**{f.name: saved[f.name] for f in fields(Columns)})
    except (OSError, ValueError, KeyError, EOFError, BadZipFile, msgspec.DecodeError):
        return None
    if about.records != len(source):
        return None
    return Scan(
        columns, about.bad, Counter(about.skipped), Counter(about.notes), about.records, cached=True
    )


def _changed(source: Source, columns: Columns) -> list[int]:
    """Records of which a picture is not the file any more that was scanned."""
    names = list(columns.names())
    size = max(1, -(-len(names) // _HEADER_THREADS))

    def differs(at: int) -> list[bool]:
        return [
            source.store.stamp(names[k]) != Stamp(int(columns.size[k]), int(columns.mtime[k]))
            if names[k]
            else False
            for k in range(at, min(at + size, len(names)))
        ]

    with ThreadPoolExecutor(_HEADER_THREADS) as pool:
        flags = list(itertools.chain.from_iterable(pool.map(differs, range(0, len(names), size))))
    if not any(flags):
        return []
    owner = np.repeat(columns.record, columns.pictures)
    return sorted(set(owner[np.array(flags)].tolist()))


def _rescan(result: Scan, changed: Sequence[int], work: _Work) -> None:
    """Scan ``changed`` anew, and the bad ones, which may have been mended."""
    again = sorted({*changed, *(bad.record for bad in result.bad)})
    new = work.scan(again)
    keep = ~np.isin(result.columns.record, again)
    merged = Columns.joined([_selected(result.columns, keep), new.columns])
    order = np.argsort(merged.record, kind="stable")
    result.columns = _reordered(merged, order)
    result.bad = new.bad
    result.cached = False


def _selected(columns: Columns, keep: NDArray[np.bool_]) -> Columns:
    return _reordered(columns, np.flatnonzero(keep))


def _reordered(columns: Columns, order: NDArray[np.int64]) -> Columns:
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
