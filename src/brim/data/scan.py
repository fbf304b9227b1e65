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
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path
from zipfile import BadZipFile

import msgspec
import numpy as np
import xxhash

from brim.data.chat import Clip, Conversation, Image, NothingToLearn, Video, name_of
from brim.data.columns import (
    Bad,
    Columns,
    Scan,
    ScannedPicture,
    ScannedSample,
    joined,
    reordered,
    selected,
)
from brim.data.decode import DecodePolicy, check_size
from brim.data.geometry import check_aspect
from brim.data.header import Header
from brim.data.lines import Lines
from brim.data.quarantine import BadSample, Quarantine
from brim.data.scanning import scan_in_processes
from brim.data.sources import Source
from brim.data.store import Stamp
from brim.data.tokens import ChatTokens, Encoded
from brim.data.video import Sampling, chosen, has_files
from brim.files import write_atomic

VERSION = 2
_CHUNK = 512
_HEADER_THREADS = 8  # hides the latency of a disk or a network; the parsing itself is too short

Progress = Callable[[int, int], None]
"""Called with (records done, records in all)."""


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
    ) -> Iterator[tuple[ScannedPicture, ...] | Bad]:
        if not any(True for c in conversations for _ in c.pictures()):
            return iter([()] * len(conversations))
        size = -(-len(conversations) // _HEADER_THREADS)
        parts = [conversations[at : at + size] for at in range(0, len(conversations), size)]
        with ThreadPoolExecutor(_HEADER_THREADS) as pool:
            return itertools.chain.from_iterable(
                list(pool.map(lambda part: [self._pictures(c) for c in part], parts))
            )

    def _pictures(self, conversation: Conversation) -> tuple[ScannedPicture, ...] | Bad:
        found = []
        for part in conversation.pictures():
            try:
                found.append(self._picture(part))
            except BadSample as bad:
                return Bad(0, bad.kind, bad.reason, name_of(part))
        return tuple(found)

    def _picture(self, part: Image | Video) -> ScannedPicture:
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
        return ScannedPicture(name_of(part), height, width, frames, stamp)

    def _clip(self, part: Video, clip: Clip) -> ScannedPicture:
        check_size(Header("video", clip.width, clip.height), self.policy)
        check_aspect(clip.height, clip.width)
        assert part.file is not None
        stamp = self.source.store.stamp(part.file) or Stamp(0, 0)
        return ScannedPicture(name_of(part), clip.height, clip.width, len(clip.frames), stamp)


def _sample(number: int, encoded: Encoded, pictures: tuple[ScannedPicture, ...]) -> ScannedSample:
    tail_start = encoded.blocks[-1][0] if encoded.blocks else 0
    tail = encoded.scored[tail_start:]
    first = int(tail.argmax()) if tail.any() else len(tail)
    scored = int(encoded.scored.sum())
    return ScannedSample(number, len(encoded.ids), scored, len(tail), first, pictures)


def _scan_source(work: _Work, processes: int, report: Callable[[int], None]) -> Scan:
    source = work.source
    chunks = [range(at, min(at + _CHUNK, len(source))) for at in range(0, len(source), _CHUNK)]
    parts = []
    if processes < 2 or len(chunks) < 4:  # a new process costs a second
        for chunk in chunks:
            parts.append(work.scan(chunk))
            report(chunk.stop)
        return joined(parts)
    for chunk, part in scan_in_processes(work, chunks, processes):
        parts.append(part)
        report(chunk.stop)
    return joined(parts)


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
    merged = Columns.joined([selected(result.columns, keep), new.columns])
    order = np.argsort(merged.record, kind="stable")
    result.columns = reordered(merged, order)
    result.bad = new.bad
    result.cached = False
