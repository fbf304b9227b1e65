"""Kineto traces (``torch.profiler``), any since 2021, as columns of whole nanoseconds.

>>> trace = read_trace(Path("worker0.1623143089861.pt.trace.json.gz"))  # doctest: +SKIP
>>> trace.device.end - trace.device.start                               # doctest: +SKIP
array([ 5000, 13000, ...])
"""

from __future__ import annotations

import functools
import gc
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from brim.errors import BrimError, InputError
from brim.record.kineto_columns import (
    Collective,
    ColumnBuilder,
    DeviceEvents,
    DeviceKind,
    HostEvents,
    HostKind,
)
from brim.record.kineto_json import EventReader, WrongCutError, blocks, cuts

__all__ = [
    "Collective",
    "DeviceEvents",
    "DeviceInfo",
    "DeviceKind",
    "HostEvents",
    "HostKind",
    "Trace",
    "check_one_job",
    "find_traces",
    "rank_in_name",
    "read_trace",
    "read_traces",
]

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_SUFFIXES: Final = (".json", ".json.gz", ".sqlite")
_SNIFF = 4 << 20
_WORTH_A_PROCESS = 8 << 20
_WORTH_A_PART = 48 << 20
"""Bytes of JSON that take longer to read than a process takes to start."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One entry of ``deviceProperties``."""

    name: str
    capability: tuple[int, int]
    sm_count: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Trace:
    """One rank's trace."""

    path: Path
    rank: int
    world_size: int
    """1 where the trace does not say."""
    device: DeviceEvents
    host: HostEvents
    names: list[str]
    """Event names; may hold anything, so escape them before showing."""
    threads: list[tuple[int | str, int | str]]
    """(pid, tid)"""
    dims: list[str] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    stacks: list[str] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    devices: dict[int, DeviceInfo] = field(default_factory=dict)
    reserved_bytes: dict[int, int] = field(default_factory=dict)
    """Device → most bytes reserved by torch's allocator (traces with ``profile_memory``)."""
    rank_known: bool = False
    """False when the rank was assumed for want of any hint."""
    truncated: bool = False
    warnings: list[str] = field(default_factory=list)

    def label(self) -> str:
        return f"rank {self.rank} ({self.path.name})"


def read_trace(path: Path | str, *, processes: int | None = None) -> Trace:
    """Read one trace: JSON, plain or gzip, or an Nsight Systems SQLite export.

    A trace that was cut off is read as far as it is whole, with a warning.  A large plain file is
    read by ``processes`` at once (default: the usable cores).

    Raises :class:`InputError` when the file is missing, empty, or not a trace.
    """
    path = Path(path)
    if _is_database(path):
        from brim.record.nsight import read_nsight

        return read_nsight(path)
    head, columns = _read(path, _usable(processes))
    if columns.complete_events == 0:
        raise InputError(
            f"{path}: a trace without any event that has a duration",
            hint="profile at least one whole step (schedule: wait, warmup, active)",
        )
    return _trace(path, head, columns)


def _is_database(path: Path) -> bool:
    try:
        with path.open("rb") as f:
            return f.read(16) == b"SQLite format 3\0"
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _usable(processes: int | None) -> int:
    return processes if processes is not None else len(os.sched_getaffinity(0))


@dataclass(slots=True)
class _Head:
    """What stands around the events."""

    metadata: dict[str, Any]
    warnings: list[str]
    truncated: bool


def _read(path: Path, processes: int) -> tuple[_Head, ColumnBuilder]:
    parts = min(processes, path.stat().st_size // _WORTH_A_PART)
    edges = cuts(path, parts) if parts > 1 else []
    if edges:
        try:
            return _read_parts(path, edges)
        except WrongCutError:
            pass
    return _read_part(path, 0, None)


def _read_part(path: Path, start: int, stop: int | None) -> tuple[_Head, ColumnBuilder]:
    reader, columns = EventReader(path, start=start, stop=stop), ColumnBuilder()
    with _without_gc():
        for events in reader:
            columns.add(events)
    head = _Head(reader.metadata, reader.warnings, reader.truncated)
    return head, columns.compact()


def _read_parts(path: Path, edges: list[int]) -> tuple[_Head, ColumnBuilder]:
    """The first part here, the others each in a process of its own."""
    with ProcessPoolExecutor(len(edges)) as pool:
        later = [
            pool.submit(_read_part, path, start, stop)
            for start, stop in pairwise([*edges, None])
            if start is not None
        ]
        head, columns = _read_part(path, 0, edges[0])
        for future in later:
            other, more = future.result()
            columns.absorb(more)
            head.metadata.update(other.metadata)
            head.warnings.extend(other.warnings)
            head.truncated |= other.truncated
    return head, columns


def _trace(path: Path, head: _Head, columns: ColumnBuilder) -> Trace:
    distributed = _table(head.metadata.get("distributedInfo"))
    rank, known = _rank(path, distributed)
    return Trace(
        path=path,
        rank=rank,
        rank_known=known,
        world_size=max(1, _integer(distributed.get("world_size"), 1)),
        device=columns.device(),
        host=columns.host(),
        names=list(columns.names),
        threads=[(_plain_id(pid), _plain_id(tid)) for pid, tid in columns.threads],
        dims=[text.decode(errors="replace") for text in columns.dims],
        types=[text.decode(errors="replace") for text in columns.types],
        stacks=list(columns.stacks),
        collectives=list(columns.collectives),
        devices=dict(_devices(head.metadata.get("deviceProperties"))),
        reserved_bytes=columns.reserved,
        truncated=head.truncated,
        warnings=head.warnings,
    )


@contextmanager
def _without_gc() -> Iterator[None]:
    """The structs hold no cycles; walking them again and again is the larger half of the cost."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _rank(path: Path, distributed: dict[str, Any]) -> tuple[int, bool]:
    rank = _integer(distributed.get("rank"), -1)
    if rank >= 0:
        return rank, True
    return rank_in_name(path)


def rank_in_name(path: Path) -> tuple[int, bool]:
    """The rank that a file's name holds (``rank-3.json``, ``worker3.pt.trace.json``), and whether
    it holds one."""
    match = _RANK_IN_NAME.search(path.name)
    return (int(match[1]), True) if match else (0, False)


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _integer(value: Any, default: int) -> int:
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return default


def _plain_id(value: int | str) -> int | str:
    return int(value) if isinstance(value, str) and value.isdecimal() else value


def _devices(properties: Any) -> Iterator[tuple[int, DeviceInfo]]:
    for entry in properties if isinstance(properties, list) else []:
        values = _table(entry)
        yield (
            _integer(values.get("id"), -1),
            DeviceInfo(
                name=str(values.get("name", "")),
                capability=(
                    _integer(values.get("computeMajor"), 0),
                    _integer(values.get("computeMinor"), 0),
                ),
                sm_count=_integer(values.get("numSms"), 0),
                memory_bytes=_integer(values.get("totalGlobalMem"), 0),
            ),
        )


def find_traces(paths: Iterable[Path | str]) -> list[Path]:
    """The trace files that ``paths`` (files and folders, one file per rank) name.

    Files are taken as they are; of a folder those that end in ``.json`` or ``.json.gz`` and hold
    ``traceEvents``.

    Raises :class:`InputError` when a path does not exist or nothing is found.
    """
    found: list[Path] = []
    for path in map(Path, paths):
        if path.is_dir():
            found += _in_folder(path)
        elif path.exists():
            found.append(path)
        else:
            raise InputError(f"{path}: no such file or folder")
    if not found:
        raise InputError("no trace was named", hint="brim diagnose TRACE.json.gz …")
    return list(dict.fromkeys(found))


def _in_folder(folder: Path) -> list[Path]:
    candidates = sorted(p for p in folder.iterdir() if p.name.endswith(_SUFFIXES) and p.is_file())
    found = [path for path in candidates if _looks_like_trace(path)]
    if not found:
        raise InputError(
            f"{folder}: no trace in this folder",
            hint="expected one .json or .json.gz per rank, as torch.profiler writes them",
        )
    return found


def _looks_like_trace(path: Path) -> bool:
    if _is_database(path):
        return True
    head = b""
    for block in blocks(path, []):
        head += block
        if b'"traceEvents"' in head or (head.lstrip()[:1] == b"[" and b'"ph"' in head):
            return True
        if len(head) > _SNIFF:
            break
    return False


def read_traces(paths: Iterable[Path | str], *, processes: int | None = None) -> list[Trace]:
    """All traces of one job, by rank, read in parallel on the cores there are.

    Raises :class:`InputError` as :func:`find_traces`, :func:`read_trace` and
    :func:`check_one_job` do.
    """
    found = find_traces(paths)
    large = sum(path.stat().st_size for path in found) > _WORTH_A_PROCESS
    workers = min(len(found), _usable(processes)) if large else 1
    if workers == 1:
        traces = [read_trace(path, processes=processes) for path in found]
    else:
        with ProcessPoolExecutor(workers) as pool:
            traces = list(pool.map(functools.partial(read_trace, processes=1), found))
    return check_one_job(traces)


def check_one_job(traces: Sequence[Trace]) -> list[Trace]:
    """``traces`` by rank.

    Raises :class:`InputError` when two are of one rank or they belong to different jobs.
    """
    if not traces:
        raise BrimError("no trace to diagnose")
    ordered = sorted(traces, key=lambda trace: trace.rank)
    for one, other in pairwise(ordered):
        if one.rank == other.rank:
            raise InputError(
                f"two traces of rank {one.rank}: {one.path.name} and {other.path.name}",
                hint="give one trace per rank of one job; two runs are what brim compare is for",
            )
        if one.world_size != other.world_size:
            raise InputError(
                f"traces of different jobs: {one.path.name} is of {one.world_size} ranks, "
                f"{other.path.name} of {other.world_size}",
                hint="give the traces of one job",
            )
    return ordered
