"""Nsight Systems exports (``nsys export --type sqlite``) as the same columns as a Kineto trace.

Read are ``CUPTI_ACTIVITY_KIND_KERNEL``, ``_MEMCPY``, ``_MEMSET``, ``_RUNTIME``, ``NVTX_EVENTS``,
``StringIds``, ``TARGET_INFO_GPU`` and the ``ENUM_…`` tables; any of them may be missing.  Times are
nanoseconds there.  NVTX ranges stand for annotations; there are no operations and no input sizes.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

from brim.errors import InputError
from brim.record.kineto import DeviceInfo, Trace, rank_in_name
from brim.record.kineto_columns import ColumnBuilder
from brim.record.kineto_json import Args, Complete

_PIECE: Final = 8192
_HINT: Final = "expected what nsys export --type sqlite writes, with CUDA traced"

# Meaning of the codes where the export has no table for them.
_COPIES: Final = {1: "Host-to-Device", 2: "Device-to-Host", 8: "Device-to-Device"}
_MEMORY: Final = {0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed"}
_KINETO_COPY: Final = {"Host-to-Device": "HtoD", "Device-to-Host": "DtoH",
                       "Device-to-Device": "DtoD", "Peer-to-Peer": "PtoP"}  # fmt: skip
_VERSION: Final = re.compile(r"_v\d+(?:_ptsz|_ptds)?$")
_RANGES: Final = (59, 60, 70, 71)
"""``eventType`` of NVTX push-pop and start-end ranges, in exports of different years."""

Row = dict[str, Any]


def read_nsight(path: Path) -> Trace:
    """Read one export; the rank comes from the file's name, else it is 0.

    Raises :class:`InputError` when it holds no CUDA activity or is no export.
    """
    with _opened(path) as database:
        try:
            return _Export(path, database).trace()
        except sqlite3.DatabaseError as error:
            raise InputError(
                f"{path}: not an Nsight Systems export ({error})", hint=_HINT
            ) from None


def _opened(path: Path) -> closing[sqlite3.Connection]:
    """A connection that can only read, closed at the end."""
    return closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True))


class _Export:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database = path, database
        names = database.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        self.tables = {name for (name,) in names}
        self.strings = {row["id"]: row["value"] for row in self._rows("StringIds")}

    def _rows(self, table: str) -> Iterator[Row]:
        """All rows of a table as dictionaries; nothing where there is no such table."""
        if table not in self.tables:
            return
        cursor = self.database.execute(f'SELECT * FROM "{table}"')  # noqa: S608  from a fixed list
        columns = [column[0] for column in cursor.description]
        for row in cursor:
            yield dict(zip(columns, row, strict=True))

    def _labels(self, table: str, known: dict[int, str]) -> dict[int, str]:
        return known | {row["id"]: row["label"] for row in self._rows(table) if row.get("label")}

    def trace(self) -> Trace:
        columns = ColumnBuilder()
        piece: list[Complete] = []
        for event in self._events():
            piece.append(event)
            if len(piece) == _PIECE:
                columns.add(piece)
                piece = []
        columns.add(piece)
        device = columns.device()
        if not len(device):
            raise InputError(f"{self.path}: no CUDA activity in this database", hint=_HINT)
        rank, known = rank_in_name(self.path)
        return Trace(
            path=self.path,
            rank=rank,
            rank_known=known,
            world_size=1,
            device=device,
            host=columns.host(),
            names=list(columns.names),
            threads=list(columns.threads),
            devices=dict(self._devices()),
            warnings=[f"{self.path.name}: an Nsight export has no operations and no input sizes"],
        )

    def _events(self) -> Iterator[Complete]:
        yield from self._kernels()
        yield from self._copies()
        yield from self._memsets()
        yield from self._calls()
        yield from self._ranges()

    def _device_event(self, row: Row, cat: str, name: str) -> Complete:
        args = Args(
            correlation=_number(row.get("correlationId")),
            device=_number(row.get("deviceId")),
            stream=_number(row.get("streamId")),
            bytes=_number(row.get("bytes")),
        )
        return Complete(name, cat, row["start"] / 1e3, (row["end"] - row["start"]) / 1e3, args=args)

    def _kernels(self) -> Iterator[Complete]:
        for row in self._rows("CUPTI_ACTIVITY_KIND_KERNEL"):
            key = row.get("demangledName", row.get("shortName"))
            yield self._device_event(row, "kernel", str(self.strings.get(key, key)))

    def _copies(self) -> Iterator[Complete]:
        kinds = self._labels("ENUM_CUDA_MEMCPY_OPER", _COPIES)
        memory = self._labels("ENUM_CUDA_MEM_KIND", _MEMORY)
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMCPY"):
            way = _KINETO_COPY.get(kinds.get(row.get("copyKind", -1), ""), "")
            source = memory.get(row.get("srcKind", -1), "Unknown")
            target = memory.get(row.get("dstKind", -1), "Unknown")
            yield self._device_event(row, "gpu_memcpy", f"Memcpy {way} ({source} -> {target})")

    def _memsets(self) -> Iterator[Complete]:
        for row in self._rows("CUPTI_ACTIVITY_KIND_MEMSET"):
            yield self._device_event(row, "gpu_memset", "Memset (Device)")

    def _calls(self) -> Iterator[Complete]:
        for row in self._rows("CUPTI_ACTIVITY_KIND_RUNTIME"):
            name = _VERSION.sub("", str(self.strings.get(row.get("nameId"), "")))
            yield _host_event(row, "cuda_runtime", name, _number(row.get("correlationId")))

    def _ranges(self) -> Iterator[Complete]:
        for row in self._rows("NVTX_EVENTS"):
            if row.get("end") is None or row.get("eventType", _RANGES[0]) not in _RANGES:
                continue
            text = row.get("text") or self.strings.get(row.get("textId"), "")
            yield _host_event(row, "user_annotation", str(text), -1)

    def _devices(self) -> Iterator[tuple[int, DeviceInfo]]:
        for row in self._rows("TARGET_INFO_GPU"):
            yield (
                _number(row.get("id")),
                DeviceInfo(
                    name=str(row.get("name", "")),
                    capability=(_number(row.get("computeMajor")), _number(row.get("computeMinor"))),
                    sm_count=max(0, _number(row.get("smCount"))),
                    memory_bytes=max(0, _number(row.get("totalMemory"))),
                ),
            )


def _host_event(row: Row, cat: str, name: str, correlation: int) -> Complete:
    """``globalTid`` holds the process in bits 24 to 47 and the thread in the lower 24."""
    thread = _number(row.get("globalTid"))
    return Complete(
        name=name,
        cat=cat,
        ts=row["start"] / 1e3,
        dur=(row["end"] - row["start"]) / 1e3,
        pid=thread >> 24 & 0xFFFFFF,
        tid=thread & 0xFFFFFF,
        args=Args(correlation=correlation),
    )


def _number(value: Any) -> int:
    return value if isinstance(value, int) else -1
