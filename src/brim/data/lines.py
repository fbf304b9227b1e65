"""JSON and JSONL files as records with their places, read by offset, never whole into objects.

A million-line file costs one pass for its line offsets (16 bytes a record); a record is parsed
when it is asked for.  Frequent confusions are named: a JSON array in a .jsonl file, a
pretty-printed object, UTF-16, holes of NUL after a crash, a last line cut by a dead writer.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from brim.data.quarantine import BadSample, Where
from brim.errors import InputError

_BOM = b"\xef\xbb\xbf"
_BLANK = b" \t\r\n"
_ARRAY = re.compile(rb"\s*\[\s*[{\]]")


class Lines:
    """The records of one .jsonl or .json file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._map = _mapped(path)
        _refuse_utf16(path, self._map)
        start = len(_BOM) if self._map[: len(_BOM)] == _BOM else 0
        self.starts, self.ends, self.numbers = self._index(start)
        if not len(self.starts):
            raise InputError(f"{path}: holds no sample")

    def __len__(self) -> int:
        return len(self.starts)

    def __reduce__(self) -> tuple[type[Lines], tuple[Path]]:
        return type(self), (self.path,)

    def where(self, index: int) -> Where:
        return Where(str(self.path), int(self.numbers[index]), int(self.starts[index]))

    def record(self, index: int) -> Any:
        """The parsed record.  Raises BadSample."""
        data = self._map[self.starts[index] : self.ends[index]]
        ended = index < len(self) - 1 or self._map[-1:] in (b"\n", b"\r", b"]")
        return loads(data, complete=ended)

    def oddities(self, index: int) -> Iterator[str]:
        """What is strange about a record that parses, and taken all the same."""
        data = self._map[self.starts[index] : self.ends[index]]
        with contextlib.suppress(ValueError, RecursionError):
            yield from (f"the key {name!r} comes twice" for name in duplicates(data))

    def fingerprint(self) -> str:
        """Of the content: the same bytes, the same fingerprint, whatever the time stamps say."""
        return xxhash.xxh3_64_hexdigest(self._map)

    def _index(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        if _ARRAY.match(self._map, start):
            return self._array(start)
        starts, ends, numbers = _lines(self._map, start)
        if len(starts) > 1 and self._map[starts[0] : ends[0]].strip() == b"{":
            raise InputError(
                f"{self.path}: pretty-printed JSON, not one object a line",
                hint="jq -c . FILE writes it one a line",
            )
        return starts, ends, numbers

    def _array(self, start: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        if self.path.suffix != ".json":
            raise InputError(
                f"{self.path}: a JSON array, not JSONL",
                hint="name it .json, or write one object a line: jq -c '.[]' FILE",
            )
        whole = self._map[start:]
        try:
            items = msgspec.json.decode(whole, type=list[msgspec.Raw])
        except msgspec.DecodeError as error:
            raise InputError(f"{self.path}: a JSON array that does not parse: {error}") from None
        starts = np.fromiter(_places(whole, items), np.int64, len(items)) + start
        lengths = np.fromiter((len(bytes(i)) for i in items), np.int64, len(items))
        return starts, starts + lengths, np.arange(1, len(items) + 1)


def _places(whole: bytes, items: list[msgspec.Raw]) -> Iterator[int]:
    """Where each element starts: they follow each other in the file."""
    at = 0
    for item in items:
        raw = bytes(item)
        at = whole.index(raw, at)
        yield at
        at += len(raw)


def _mapped(path: Path) -> mmap.mmap:
    try:
        with path.open("rb") as f:
            return mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except ValueError:  # mmap refuses what is empty
        raise InputError(f"{path}: an empty file; it holds no sample") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def _refuse_utf16(path: Path, data: mmap.mmap) -> None:
    head = data[:4]
    if head[:2] in (b"\xff\xfe", b"\xfe\xff") or (head[1:2] == b"\0" and head[3:4] == b"\0"):
        raise InputError(f"{path}: UTF-16, not UTF-8", hint=f"iconv -f UTF-16 -t UTF-8 {path.name}")


def _lines(
    data: mmap.mmap, start: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """(starts, ends, line numbers from 1) of the lines that are not blank."""
    end = 10 if data.find(b"\n") >= 0 else 13  # a file of the old Mac ends its lines with CR alone
    view = np.frombuffer(data, np.uint8)
    block = 1 << 26
    breaks = [
        np.flatnonzero(view[at : at + block] == end) + at for at in range(start, len(view), block)
    ]
    ends = np.concatenate([*breaks, np.array([len(view)])]).astype(np.int64)
    starts = np.concatenate([[start], ends[:-1] + 1]).astype(np.int64)
    # only a short line can be blank, so only those are looked at
    full = ends - starts > 64
    for k in np.flatnonzero(~full).tolist():
        full[k] = bool(data[starts[k] : ends[k]].strip(_BLANK))
    del view  # or the map could never be closed
    return starts[full], ends[full], np.flatnonzero(full) + 1


def loads(data: bytes, *, complete: bool = True) -> Any:
    """One JSON record.  ``complete=False``: the last of a file without a final line end.

    A key that comes twice keeps its last value, as everywhere; ``duplicates`` counts them.
    """
    try:
        return json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise BadSample(
            "json.utf8",
            f"no UTF-8 at byte {error.start + 1} of the line (decode it with errors='replace')",
        ) from None
    except json.JSONDecodeError as error:
        raise BadSample("json.syntax", _explain(data, error, complete)) from None
    except RecursionError:
        raise BadSample("json.nesting", "nested too deeply") from None
    except ValueError as error:  # the limit on digits of an integer
        raise BadSample("json.number", str(error).partition(";")[0]) from None


def duplicates(data: bytes) -> tuple[str, ...]:
    """Keys that an object of a parsable record holds twice; the last value wins."""
    found: list[str] = []

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) < len(items):
            names = [name for name, _ in items]
            found.extend(sorted({name for name in names if names.count(name) > 1}))
        return result

    json.loads(data, object_pairs_hook=pairs)
    return tuple(found)


def _explain(data: bytes, error: json.JSONDecodeError, complete: bool) -> str:
    if b"\0" in data:
        return "NUL bytes: a hole that a crash left"
    if not complete:
        return f"the file ends inside this record (did its writer die?): {error.msg}"
    if error.msg == "Extra data":
        return f"a second value on the line, at column {error.colno}"
    if data.lstrip()[:1] in (b"#", b"/"):
        return "a comment; JSON has none"
    return f"{error.msg} at column {error.colno}"
