"""Append-only JSON lines, as a run leaves them: the last line may be cut, at any byte."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")


class _Kind(msgspec.Struct):
    kind: str = ""


def read_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """(kind, line) of each whole line; a cut or damaged line is left out.

    ``kind`` is the line's ``kind`` field, ``""`` where it has none.
    """
    decode = msgspec.json.Decoder(_Kind).decode
    with path.open("rb") as f:
        for line in f:
            if not line.endswith(b"\n"):
                return
            try:
                yield decode(line).kind, line
            except msgspec.DecodeError:
                continue


def decoded(path: Path, kind: type[T]) -> Iterator[T]:
    """The lines that are a ``kind``; what a later version writes otherwise is left out."""
    decode = msgspec.json.Decoder(kind).decode
    for _, line in read_lines(path):
        with contextlib.suppress(msgspec.ValidationError):
            yield decode(line)
