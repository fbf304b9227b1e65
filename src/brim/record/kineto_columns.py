"""A trace as columns: typed events in, numpy arrays of whole nanoseconds out."""

from __future__ import annotations

import operator
from collections import defaultdict
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from brim.record.kineto_json import Args, Complete, ExactComplete, Instant

Int64 = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]
UInt8 = npt.NDArray[np.uint8]


class DeviceKind(IntEnum):
    KERNEL = 0
    MEMCPY = 1
    MEMSET = 2


class HostKind(IntEnum):
    OP = 0
    """An operation of the framework (``aten::mm``, an autograd node)."""
    RUNTIME = 1
    """A call of the CUDA or HIP runtime or driver."""
    ANNOTATION = 2
    """``record_function``: steps, loader, optimizer, the user's own."""
    PYTHON = 3
    """A Python frame or a module call, recorded with ``with_stack``."""
    OVERHEAD = 4
    """The profiler's own work."""


# Category, in lower case, → kind; what is not here is not needed.
_DEVICE: Final = {
    "kernel": DeviceKind.KERNEL,
    "gpu_memcpy": DeviceKind.MEMCPY,
    "memcpy": DeviceKind.MEMCPY,
    "gpu_memset": DeviceKind.MEMSET,
    "memset": DeviceKind.MEMSET,
}
_HOST: Final = {
    "cpu_op": HostKind.OP,
    "operator": HostKind.OP,
    "cuda_runtime": HostKind.RUNTIME,
    "cuda_driver": HostKind.RUNTIME,
    "runtime": HostKind.RUNTIME,
    "user_annotation": HostKind.ANNOTATION,
    "python_function": HostKind.PYTHON,
    "overhead": HostKind.OVERHEAD,
}


@dataclass(frozen=True, slots=True)
class Collective:
    """What a communication kernel says about its call (torch from 2.1 on)."""

    name: str
    elements_in: int
    elements_out: int
    dtype: str
    group_size: int
    group: str


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """Kernels, copies and memsets, sorted by start; all arrays have shape (events,)."""

    start: Int64
    """ns"""
    end: Int64
    """ns"""
    name: Int32
    """Index into ``Trace.names``."""
    kind: UInt8
    device: Int32
    stream: Int32
    correlation: Int64
    """Of the host's call that launched it; -1 where absent."""
    n_bytes: Int64
    """Of a copy or memset; -1 where absent."""
    collective: Int32
    """Index into ``Trace.collectives``; -1 where absent."""

    def __len__(self) -> int:
        return len(self.start)


@dataclass(frozen=True, slots=True)
class HostEvents:
    """What host threads did, sorted by start, parents first; all arrays have shape (events,)."""

    start: Int64
    """ns"""
    end: Int64
    """ns"""
    name: Int32
    """Index into ``Trace.names``."""
    kind: UInt8
    thread: Int32
    """Index into ``Trace.threads``."""
    correlation: Int64
    sequence: Int64
    """Autograd's sequence number; a forward operation and its node in backward share it."""
    forward_thread: Int64
    dims: Int32
    """``Input Dims`` as JSON text: index into ``Trace.dims``; -1 where absent."""
    types: Int32
    """``Input type`` as JSON text: index into ``Trace.types``; -1 where absent."""
    stack: Int32
    """``Call stack``: index into ``Trace.stacks``; -1 where absent."""

    def __len__(self) -> int:
        return len(self.start)


class Interner(dict[Any, int]):
    """Value → its index by first appearance."""

    def __missing__(self, value: Any) -> int:
        index = self[value] = len(self)
        return index


_name, _ts, _dur, _args = map(operator.attrgetter, ("name", "ts", "dur", "args"))
_place = operator.attrgetter("pid", "tid")
_dims, _types, _stack = map(operator.attrgetter, ("dims", "types", "stack"))


def _integers(name: str, values: list[Any], count: int) -> Int64:
    get = operator.attrgetter(name)
    try:
        return np.fromiter(map(get, values), np.int64, count)
    except OverflowError:  # no id of a profiler is that large
        kept = (v if -(1 << 63) <= v < 1 << 63 else -1 for v in map(get, values))
        return np.fromiter(kept, np.int64, count)


EMPTY: Final = Args()
_LATEST: Final = 9e15
"""µs: later times do not fit into 64-bit nanoseconds."""
_LONGEST: Final = 1e11
"""µs: a day, more than any event lasts."""
_TYPES: Final = {"name": np.int32, "kind": np.uint8, "device": np.int32, "stream": np.int32,
                 "collective": np.int32, "thread": np.int32, "dims": np.int32, "types": np.int32,
                 "stack": np.int32}  # fmt: skip


class ColumnBuilder:
    """Takes pieces of a trace's events and keeps only columns."""

    def __init__(self) -> None:
        self.names = Interner()
        self.dims = Interner()
        self.types = Interner()
        self.stacks = Interner()
        self.threads = Interner()
        self.collectives = Interner()
        self.reserved: dict[int, int] = {}
        """Device → most bytes that torch's allocator had reserved."""
        self.complete_events = 0
        self.negative = 0
        self._device: list[dict[str, npt.NDArray[Any]]] = []
        self._host: list[dict[str, npt.NDArray[Any]]] = []

    def add(self, events: list[Any]) -> None:
        """Sort a piece's events into columns."""
        by_category: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            if event.__class__ is Complete or event.__class__ is ExactComplete:
                by_category[event.cat].append(event)
            elif event.__class__ is Instant:
                self._memory(event)
        for category, group in by_category.items():
            self.complete_events += len(group)
            lower = category.lower()
            if lower in _DEVICE:
                self._device.append(self._device_columns(group, _DEVICE[lower]))
            elif lower in _HOST:
                self._host.append(self._host_columns(group, _HOST[lower]))

    def _memory(self, event: Instant) -> None:
        args = event.args
        if args is not None and args.device_type > 0 and args.reserved > 0:
            self.reserved[args.device] = max(self.reserved.get(args.device, 0), args.reserved)

    def _times(self, group: list[Any]) -> dict[str, npt.NDArray[Any]]:
        start = _starts(group)
        duration = np.fromiter(map(_dur, group), np.float64, len(group))
        self.negative += int((duration < 0).sum())
        length = np.rint(np.clip(duration, 0.0, _LONGEST) * 1000.0).astype(np.int64)
        names = np.fromiter(map(self.names.__getitem__, map(_name, group)), np.int32, len(group))
        return {"start": start, "end": start + length, "name": names}

    def _device_columns(self, group: list[Any], kind: DeviceKind) -> dict[str, npt.NDArray[Any]]:
        count = len(group)
        args = [event.args or EMPTY for event in group]
        columns = self._times(group)
        stream = _integers("stream", args, count)
        device = _integers("device", args, count)
        if (missing := stream < 0).any():
            stream = np.where(missing, [_number(event.tid) for event in group], stream)
        if (missing := device < 0).any():
            device = np.where(missing, [_number(event.pid) for event in group], device)
        return columns | {
            "kind": np.full(count, kind, np.uint8),
            "device": device.astype(np.int32),
            "stream": stream.astype(np.int32),
            "correlation": _integers("correlation", args, count),
            "n_bytes": _integers("bytes", args, count),
            "collective": np.fromiter(map(self._collective, args), np.int32, count),
        }

    def _collective(self, args: Any) -> int:
        if not args.collective:
            return -1
        return self.collectives[
            Collective(
                args.collective, args.elements_in, args.elements_out,
                args.dtype, args.group_size, args.group,
            )
        ]  # fmt: skip

    def _host_columns(self, group: list[Any], kind: HostKind) -> dict[str, npt.NDArray[Any]]:
        count = len(group)
        columns = self._times(group) | {
            "kind": np.full(count, kind, np.uint8),
            "thread": np.fromiter(
                map(self.threads.__getitem__, map(_place, group)), np.int32, count
            ),
        }
        if kind is HostKind.RUNTIME:
            args = [event.args or EMPTY for event in group]
            return columns | _absent(count) | {"correlation": _integers("correlation", args, count)}
        if kind is HostKind.OP or kind is HostKind.ANNOTATION:
            return columns | self._op_columns([event.args or EMPTY for event in group])
        return columns | _absent(count)

    def _op_columns(self, args: list[Any]) -> dict[str, npt.NDArray[Any]]:
        """Plain list comprehensions: this is a third of all the work on columns."""
        count = len(args)
        dims, types, stacks = self.dims, self.types, self.stacks
        return {
            "correlation": np.full(count, -1, np.int64),
            "sequence": _integers("sequence", args, count),
            "forward_thread": _integers("forward_thread", args, count),
            "dims": np.array([dims[bytes(v)] if v else -1 for v in map(_dims, args)], np.int32),
            "types": np.array([types[bytes(v)] if v else -1 for v in map(_types, args)], np.int32),
            "stack": np.array([stacks[v] if v else -1 for v in map(_stack, args)], np.int32),
        }

    def compact(self) -> ColumnBuilder:
        """Join the pieces, so that the whole travels to another process as a few arrays."""
        self._device = [_joined(self._device, DeviceEvents)] if self._device else []
        self._host = [_joined(self._host, HostEvents)] if self._host else []
        return self

    def absorb(self, other: ColumnBuilder) -> None:
        """Add the events of a later part of the same file."""
        tables = {
            "name": _translation(self.names, other.names),
            "thread": _translation(self.threads, other.threads),
            "dims": _translation(self.dims, other.dims),
            "types": _translation(self.types, other.types),
            "stack": _translation(self.stacks, other.stacks),
            "collective": _translation(self.collectives, other.collectives),
        }
        for parts, mine in ((other._device, self._device), (other._host, self._host)):
            for part in parts:
                for name in tables.keys() & part.keys():
                    part[name] = tables[name][part[name]]  # -1 picks the last entry, which is -1
                mine.append(part)
        for device, reserved in other.reserved.items():
            self.reserved[device] = max(self.reserved.get(device, 0), reserved)
        self.complete_events += other.complete_events
        self.negative += other.negative

    def device(self) -> DeviceEvents:
        """All device events so far, by start (the longer first where two start together)."""
        columns = _joined(self._device, DeviceEvents)
        order = np.lexsort((-columns["end"], columns["start"]))
        return DeviceEvents(**{name: column[order] for name, column in columns.items()})

    def host(self) -> HostEvents:
        """All host events so far, by start (the longer first: parents before children)."""
        columns = _joined(self._host, HostEvents)
        order = np.lexsort((-columns["end"], columns["start"]))
        return HostEvents(**{name: column[order] for name, column in columns.items()})


def _translation(mine: Interner, theirs: Interner) -> Int32:
    """Their index → mine; the entry behind the last stands for absent."""
    return np.array([*(mine[value] for value in theirs), -1], np.int32)


def _absent(count: int) -> dict[str, npt.NDArray[Any]]:
    nothing32 = np.full(count, -1, np.int32)
    nothing64 = np.full(count, -1, np.int64)
    return {
        "correlation": nothing64, "sequence": nothing64, "forward_thread": nothing64,
        "dims": nothing32, "types": nothing32, "stack": nothing32,
    }  # fmt: skip


def _joined(parts: list[dict[str, npt.NDArray[Any]]], kind: type) -> dict[str, npt.NDArray[Any]]:
    """Column name → all parts in one array; the parts are freed on the way."""
    out: dict[str, npt.NDArray[Any]] = {}
    for field in fields(kind):
        dtype = _TYPES.get(field.name, np.int64)
        columns = [part.pop(field.name) for part in parts]
        out[field.name] = np.concatenate(columns, dtype=dtype) if columns else np.empty(0, dtype)
    return out


def _starts(group: list[Any]) -> Int64:
    """ns, exactly.

    A float64 below 2^43 µs is less than half a nanosecond from its decimal, so splitting off the
    whole microseconds first and rounding the rest restores the nanosecond; larger whole numbers
    are exact up to 2^53.
    """
    if ExactComplete in set(map(type, group)):
        return np.array([_exact_ns(event.ts) for event in group], np.int64)
    microseconds = np.clip(np.fromiter(map(_ts, group), np.float64, len(group)), 0.0, _LATEST)
    whole = np.floor(microseconds)
    return whole.astype(np.int64) * 1000 + np.rint((microseconds - whole) * 1000.0).astype(np.int64)


def _exact_ns(text: Any) -> int:
    if isinstance(text, float):
        text = repr(text)
    digits = text if isinstance(text, str) else bytes(text).decode()
    whole, _, fraction = digits.partition(".")
    if len(fraction) <= 3 and len(whole) < 16 and whole.isdigit() and fraction.isdigit():
        return int(whole) * 1000 + int(fraction.ljust(3, "0"))
    microseconds = min(max(Decimal(digits), Decimal(0)), Decimal(_LATEST))
    return int((microseconds * 1000).to_integral_value())


def _number(value: int | str) -> int:
    """A pid or tid that a trace may write as text (``stream 7``)."""
    if isinstance(value, int):
        return value
    digits = "".join(c for c in value if c.isdigit())
    return int(digits) if digits else -1
