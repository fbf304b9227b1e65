"""Kineto traces (``torch.profiler``), any since 2021, as columns of whole nanoseconds.

>>> trace = read_trace(Path("worker0.1623143089861.pt.trace.json.gz"))  # doctest: +SKIP
>>> trace.device.end - trace.device.start                               # doctest: +SKIP
array([ 5000, 13000, ...])
"""

from __future__ import annotations

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
from brim.record.kineto_json import EventReader, blocks

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
    "read_trace",
    "read_traces",
]

_RANK_IN_NAME = re.compile(r"(?:^|[^a-z])(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_SUFFIXES: Final = (".json", ".json.gz")
_SNIFF = 4 << 20
_WORTH_A_PROCESS = 8 << 20


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


def read_trace(path: Path | str) -> Trace:
    """Read one trace, plain or gzip.

    A trace that was cut off is read as far as it is whole, with a warning.

    Raises :class:`InputError` when the file is missing, empty, or not a trace.
    """
    path = Path(path)
    reader, columns = EventReader(path), ColumnBuilder()
    with _without_gc():
        for events in reader:
            columns.add(events)
    if columns.complete_events == 0:
        raise InputError(
            f"{path}: a trace without any event that has a duration",
            hint="profile at least one whole step (schedule: wait, warmup, active)",
        )
    return _trace(path, reader, columns)


def _trace(path: Path, reader: EventReader, columns: ColumnBuilder) -> Trace:
    distributed = _table(reader.metadata.get("distributedInfo"))
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
        devices=dict(_devices(reader.metadata.get("deviceProperties"))),
        reserved_bytes=columns.reserved,
        truncated=reader.truncated,
        warnings=reader.warnings,
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
    if match := _RANK_IN_NAME.search(path.name):
        return int(match[1]), True
    return 0, False


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
    workers = min(len(found), processes or len(os.sched_getaffinity(0))) if large else 1
    if workers == 1:
        traces = [read_trace(path) for path in found]
    else:
        with ProcessPoolExecutor(workers) as pool:
            traces = list(pool.map(read_trace, found))
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
