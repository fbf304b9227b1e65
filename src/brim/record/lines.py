"""Append-only JSON lines, as a run leaves them: the last line may be cut, at any byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec


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
