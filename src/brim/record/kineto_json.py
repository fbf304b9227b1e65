"""From the bytes of a Kineto trace to typed events, piece by piece.

A trace of one job is easily a gigabyte of JSON.  Here it is never held as a whole: the array
``traceEvents`` is cut between two events about every megabyte, and each piece is decoded by
msgspec into structs with the needed fields only.

A cut is a guess (``}`` comma ``{`` may also stand inside a string or a nested list), and the
decoder is its proof: a piece starts at an event, so when ``[piece]`` is valid JSON, then its end
lies between two events as well.
"""

from __future__ import annotations

import functools
import itertools
import operator
import re
import types
import zlib
from collections.abc import Iterator
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, BinaryIO, Final, Generic, TypeVar

import msgspec

from brim.errors import InputError

PIECE: Final = 1 << 20
"""Bytes decoded at once: structs of a piece stay in the CPU's caches (measured: 1 MiB decodes a
third faster than 4 or 16 MiB)."""
EXACT_FROM: Final = float(1 << 43)
"""µs; below, a float64 is nearer than half a nanosecond to the decimal in the file."""
_HEAD_LIMIT = 256 << 20
_SEARCH = 1 << 14
_GIVE_UP = 32 << 20
_TRIES = 8

_BOUNDARY = re.compile(rb"\}(\s*,)\s*\{")
_TIME = re.compile(rb'"ts"\s*:\s*(\d+\.\d+)')
_OBJECT = b'{"traceEvents":['
_HINT = "expected the JSON that torch.profiler's export_chrome_trace writes, plain or gzip"
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_NOT_A_NUMBER = re.compile(
    rb"(?<=[:,\[\s])(-?(?:nan|NaN|inf|Inf|Infinity)(?:\([a-z0-9]*\))?)(?=[,\s}\]])"
)
_CONTROL = re.compile(rb"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_LONE_BACKSLASH = re.compile(rb'\\(?!["\\/bfnrtu])')


class Args(msgspec.Struct, gc=False):
    """What is read of an event's ``args``; -1 and empty stand for absent."""

    correlation: int = -1
    device: int = -1
    stream: int = -1
    bytes: int = -1
    sequence: int = msgspec.field(default=-1, name="Sequence number")
    forward_thread: int = msgspec.field(default=-1, name="Fwd thread id")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(b""), name="Input type")
    stack: str = msgspec.field(default="", name="Call stack")
    collective: str = msgspec.field(default="", name="Collective name")
    elements_in: int = msgspec.field(default=-1, name="In msg nelems")
    elements_out: int = msgspec.field(default=-1, name="Out msg nelems")
    dtype: str = ""
    group_size: int = msgspec.field(default=-1, name="Group size")
    group: str = msgspec.field(default="", name="Process Group Name")


class Complete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """An event with a duration; ``ts`` and ``dur`` are µs."""

    name: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = -1.0
    pid: int | str = 0
    tid: int | str = 0
    args: Args | None = None


class ExactComplete(msgspec.Struct, gc=False, tag_field="ph", tag="X"):
    """The same with ``ts`` as the digits in the file.

    Early nanosecond traces hold absolute times (1.7e15 µs with three digits behind the point);
    a float64 resolves 0.25 µs there.
    """

    name: str = ""
    cat: str = ""
    ts: msgspec.Raw = msgspec.Raw(b"0")
    dur: float = -1.0
    pid: int | str = 0
    tid: int | str = 0
    args: Args | None = None


class InstantArgs(msgspec.Struct, gc=False):
    reserved: int = msgspec.field(default=-1, name="Total Reserved")
    device_type: int = msgspec.field(default=-1, name="Device Type")
    device: int = msgspec.field(default=-1, name="Device Id")


class Instant(msgspec.Struct, gc=False, tag_field="ph", tag="i"):
    """A moment; of these only the allocator's ``[memory]`` records are used."""

    name: str = ""
    args: InstantArgs | None = None


Event = Complete | ExactComplete | Instant

# Flow arrows, metadata, counters, async spans: a third of all events, and nothing in them is
# needed (correlation ids stand in the events themselves), so they decode to empty structs.
_SKIPPED = tuple(
    msgspec.defstruct(f"Skipped{number}", [], tag_field="ph", tag=phase, gc=False)
    for number, phase in enumerate("stfMCbenBEPNODcRSTpFvVaIz")
)


def _union(kind: type) -> Any:
    return functools.reduce(operator.or_, (kind, Instant, *_SKIPPED))


@functools.cache
def _decoder(kind: type) -> msgspec.json.Decoder[list[Any]]:
    return msgspec.json.Decoder(types.GenericAlias(list, (_union(kind),)))


_E = TypeVar("_E")


class _Document(msgspec.Struct, Generic[_E]):
    """The end of a trace: its last events and the keys behind them."""

    traceEvents: list[_E]
    schemaVersion: msgspec.Raw = msgspec.Raw(b"")
    deviceProperties: msgspec.Raw = msgspec.Raw(b"")
    distributedInfo: msgspec.Raw = msgspec.Raw(b"")
    baseTimeNanoseconds: msgspec.Raw = msgspec.Raw(b"")
    traceName: msgspec.Raw = msgspec.Raw(b"")
    with_stack: msgspec.Raw = msgspec.Raw(b"")


def blocks(
    path: Path, warnings: list[str], *, start: int = 0, stop: int | None = None
) -> Iterator[bytes]:
    """The file's bytes, decompressed when they are gzip (by content, not by name).

    A gzip stream that ends early yields what is whole and leaves a warning.  ``start`` and
    ``stop`` choose a part of a plain file.
    """
    try:
        with path.open("rb") as f:
            packed = f.read(2) == b"\x1f\x8b"
            f.seek(start)
            yield from _inflate(f, path, warnings, PIECE) if packed else _plain(f, start, stop)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None


def _plain(f: BinaryIO, start: int, stop: int | None) -> Iterator[bytes]:
    left = None if stop is None else stop - start
    while block := f.read(PIECE if left is None else min(PIECE, left)):
        left = None if left is None else left - len(block)
        yield block


def cuts(path: Path, parts: int) -> list[int]:
    """Offsets at which a plain file can probably be cut between two events, ``parts - 1`` at most.

    Each is a guess; reading up to it proves or refutes it.
    """
    size = path.stat().st_size
    found: list[int] = []
    with path.open("rb") as f:
        if f.read(2) == b"\x1f\x8b":
            return []
        for part in range(1, parts):
            f.seek(size * part // parts)
            offset, text = f.tell(), f.read(_SEARCH * 4)
            if match := _BOUNDARY.search(text):
                found.append(offset + match.end(1))
    return sorted(set(found))


class WrongCutError(Exception):
    """A part of a file does not end between two events; read the file in one go."""


def _inflate(f: BinaryIO, path: Path, warnings: list[str], size: int) -> Iterator[bytes]:
    stream = zlib.decompressobj(wbits=31)
    pending = b""
    while True:
        pending = pending or f.read(size)
        if not pending:
            break
        try:
            out = stream.decompress(pending, size)
        except zlib.error as error:
            warnings.append(f"{path.name}: the gzip data is damaged ({error}); read up to there")
            return
        pending = stream.unconsumed_tail
        if stream.eof:  # several members may follow one another
            pending = stream.unused_data.lstrip(b"\0")
            stream = zlib.decompressobj(wbits=31)
            if not pending and not (pending := f.read(size)):
                yield out
                return
        yield out
    warnings.append(f"{path.name}: the gzip data ends early; what is whole was read")


class EventReader:
    """Iterates over a trace's events in pieces; afterwards ``metadata`` holds the other keys.

    ``start`` and ``stop`` choose a part of a plain file, from one of :func:`cuts` to the next; only
    the part from 0 reads the head, only the one without ``stop`` the tail.

    Raises :class:`InputError` when the bytes are no trace at all, :class:`WrongCutError` when a
    part does not end between two events.
    """

    def __init__(self, path: Path, *, start: int = 0, stop: int | None = None) -> None:
        self.path = path
        self._start, self._stop = start, stop
        self.warnings: list[str] = []
        self.metadata: dict[str, Any] = {}
        self.truncated = False
        self._kind: type = Complete
        self._decoder = _decoder(Complete)
        self._dropped = 0
        self._repaired = False
        self._prefix = _OBJECT

    def __iter__(self) -> Iterator[list[Any]]:
        source = blocks(self.path, self.warnings, start=self._start, stop=self._stop)
        buffer = next(source, b"") if self._start else self._head(source)
        self._choose_decoder(buffer)
        enough = PIECE
        for block in source:
            buffer += block
            if len(buffer) < enough:
                continue
            events, used = self._piece(buffer)
            if used:
                yield events
                buffer = buffer[used:]
            enough = PIECE if used else 2 * len(buffer)
        yield self._tail(buffer) if self._stop is None else self._rest(buffer)
        self._report()

    def _rest(self, buffer: bytes) -> list[Any]:
        """The end of a part that is not the last."""
        text = buffer.strip().removesuffix(b",")
        if (events := self._decode(text)) is None:
            raise WrongCutError
        return events

    def _report(self) -> None:
        name = self.path.name
        if self.truncated:
            self.warnings.append(f"{name}: the JSON ends early; what is whole was read")
        if self._repaired:
            self.warnings.append(f"{name}: not strict JSON (nan, inf or stray bytes); repaired")
        if self._dropped:
            self.warnings.append(f"{name}: {self._dropped} malformed events were left out")

    # -- head: everything up to the first event --

    def _head(self, source: Iterator[bytes]) -> bytes:
        buffer = b""
        for block in source:
            buffer += block
            text = buffer.removeprefix(b"\xef\xbb\xbf").lstrip()
            if text[:1] == b"[":
                self._prefix = b"["
                return text[1:]
            if text[:1] not in (b"{", b"") or len(buffer) > _HEAD_LIMIT:
                break
            if (start := self._array_start(text)) is not None:
                return text[start:]
        if not buffer.strip():
            raise InputError(f"{self.path}: the file is empty", hint=_HINT)
        raise InputError(f"{self.path}: not a trace of torch.profiler", hint=_HINT)

    def _array_start(self, text: bytes) -> int | None:
        """Where the first event starts; the key may also stand inside a string, so prove it."""
        for match in _ARRAY.finditer(text):
            head = _json(text[: match.end()] + b"]}")
            if isinstance(head, dict) and head.pop("traceEvents", None) == []:
                self.metadata.update(head)
                return match.end()
        return None

    def _choose_decoder(self, buffer: bytes) -> None:
        """Exact times where a float64 cannot hold them (the first time stamps tell)."""
        for match in itertools.islice(_TIME.finditer(buffer), 200):
            if float(match[1]) >= EXACT_FROM:
                self._kind = ExactComplete
                self._decoder = _decoder(ExactComplete)
                return

    # -- body --

    def _piece(self, buffer: bytes) -> tuple[list[Any], int]:
        """Events up to the last provable cut, and the bytes used up (0: read more first)."""
        cuts = list(_BOUNDARY.finditer(buffer, max(0, len(buffer) - _SEARCH)))
        for cut in reversed(cuts[-_TRIES:]):
            if (events := self._decode(buffer[: cut.start() + 1])) is not None:
                return events, cut.end(1)
        if len(buffer) < _GIVE_UP or not cuts:
            return [], 0
        return self._salvage(buffer[: cuts[-1].start() + 1]), cuts[-1].end(1)

    def _decode(self, piece: bytes) -> list[Any] | None:
        """The events of ``piece``, or None when it is not a whole number of events."""
        text = b"[" + piece + b"]"
        try:
            return self._decoder.decode(text)
        except msgspec.ValidationError:
            return self._lenient(text)
        except (msgspec.DecodeError, UnicodeDecodeError):
            fixed = repaired(text)
            if fixed == text or (events := self._lenient(fixed)) is None:
                return None
            self._repaired = True
            return events

    def _lenient(self, text: bytes) -> list[Any] | None:
        """The same through untyped JSON, for events with fields of an unusual type."""
        values = _json(text)
        return self._from_values(values) if isinstance(values, list) else None

    def _from_values(self, values: list[Any]) -> list[Any]:
        events = []
        for value in values:
            if isinstance(value, dict) and value.get("ph") == "X":
                try:
                    events.append(_from_dict(value))
                except (LookupError, ValueError, TypeError):
                    self._dropped += 1
        return events

    def _salvage(self, piece: bytes) -> list[Any]:
        """Event by event, leaving out what cannot be read."""
        events: list[Any] = []
        start = 0
        for cut in [*(m.start() + 1 for m in _BOUNDARY.finditer(piece)), len(piece)]:
            one = self._decode(piece[start:cut].lstrip(b", \t\r\n"))
            if one is None:
                self._dropped += 1
            else:
                events += one
            start = cut
        return events

    # -- tail: the last events, and the keys behind the array --

    def _tail(self, buffer: bytes) -> list[Any]:
        text = self._prefix + buffer.rstrip(b" \t\r\n\0")
        try:
            return self._typed_tail(text)
        except msgspec.DecodeError:
            document = _json(text)
        if document is None:
            document = _json(repaired(text))
            self._repaired = document is not None
        if isinstance(document, dict):
            events = document.pop("traceEvents", None)
            self.metadata.update(document)
        else:
            events = document
        if isinstance(events, list):
            return self._from_values(events)
        self.truncated = True
        return self._last_whole(buffer)

    def _typed_tail(self, text: bytes) -> list[Any]:
        """Raises DecodeError when the trace does not end as it should."""
        if self._prefix == b"[":
            return self._decoder.decode(text)
        kind = _union(self._kind)
        document = msgspec.json.decode(text, type=_Document[kind])  # type: ignore[valid-type]
        for field in msgspec.structs.fields(document)[1:]:
            if raw := bytes(getattr(document, field.name)):
                self.metadata[field.encode_name] = msgspec.json.decode(raw)
        return document.traceEvents

    def _last_whole(self, buffer: bytes) -> list[Any]:
        """The events before the end of a cut-off trace."""
        end = len(buffer)
        for _ in range(8 * _TRIES):
            end = buffer.rfind(b"}", 0, end)
            if end < 0:
                return []
            if (events := self._decode(buffer[: end + 1])) is not None:
                return events
        return self._salvage(buffer[: end + 1])


def repaired(text: bytes) -> bytes:
    """``text`` as strict JSON, for the ways in which profilers are known to break it.

    Kineto wrote ``nan`` and ``inf`` for bandwidths over no time, raw control characters and
    invalid UTF-8 in names, and single backslashes of Windows paths.
    """
    text = text.decode("utf-8", errors="replace").encode()
    text = _NOT_A_NUMBER.sub(b"null", text)
    text = _LONE_BACKSLASH.sub(rb"\\\\", text)
    return _CONTROL.sub(b" ", text)


def _json(text: bytes) -> Any:
    """Untyped; None when it is not JSON."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _number(value: Any) -> Decimal:
    try:
        number = Decimal(str(value))
    except InvalidOperation:
        raise ValueError(value) from None
    if not number.is_finite():
        raise ValueError(value)
    return number


def _from_dict(value: dict[str, Any]) -> ExactComplete:
    """An event whose fields have unusual types; raises ValueError when it has no time."""
    duration = value.get("dur")
    args = value.get("args")
    return ExactComplete(
        name=str(value.get("name", "")),
        cat=str(value.get("cat", "")),
        ts=msgspec.Raw(f"{_number(value['ts']):f}".encode()),
        dur=-1.0 if duration is None else float(_number(duration)),
        pid=_thread(value.get("pid", 0)),
        tid=_thread(value.get("tid", 0)),
        args=_args(args) if isinstance(args, dict) else None,
    )


def _thread(value: Any) -> int | str:
    return value if isinstance(value, int) else str(value)


_INTEGERS = {
    f.encode_name: f.name for f in msgspec.structs.fields(Args) if f.type is int
}  # fmt: skip
_STRINGS = {f.encode_name: f.name for f in msgspec.structs.fields(Args) if f.type is str}


def _args(values: dict[str, Any]) -> Args:
    """What can be read of ``args``; a field that cannot counts as absent."""
    args = Args()
    for key, name in _INTEGERS.items():
        try:
            setattr(args, name, int(_number(values[key])))
        except (KeyError, ValueError):
            continue
    for key, name in _STRINGS.items():
        if isinstance(values.get(key), str):
            setattr(args, name, values[key])
    for key, name in (("Input Dims", "dims"), ("Input type", "types")):
        if isinstance(values.get(key), list):
            setattr(args, name, msgspec.Raw(msgspec.json.encode(values[key])))
    return args
