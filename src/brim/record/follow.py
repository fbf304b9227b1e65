"""Reads a file that another process appends to, a bounded piece at a time."""

from __future__ import annotations

from pathlib import Path

_MOST_BYTES = 1 << 20
"""Per look: a view that starts beside a long run must not read all of it at once."""


class Follower:
    """The whole lines that have been added to a JSON-lines file since the last look."""

    def __init__(self, path: Path, *, tail_bytes: int | None = None) -> None:
        """``tail_bytes``: skip what lies further back than this when it starts."""
        self.path = path
        self._tail_bytes = tail_bytes
        self._offset: int | None = None
        self._rest = b""
        self._skip_first = False

    def lines(self) -> list[bytes]:
        """New lines without their newline; empty while the file does not exist.

        A file that became shorter was replaced: it is read from its start.
        """
        try:
            with self.path.open("rb") as f:
                size = f.seek(0, 2)
                if self._offset is None or size < self._offset:
                    self._begin(size)
                assert self._offset is not None
                f.seek(self._offset)
                data = f.read(_MOST_BYTES)
        except OSError:
            return []
        self._offset += len(data)
        *whole, self._rest = (self._rest + data).split(b"\n")
        if self._skip_first and whole:
            whole = whole[1:]
            self._skip_first = False
        return [line for line in whole if line]

    def _begin(self, size: int) -> None:
        """Start at the file's beginning, or in its middle, where the first line is cut."""
        again = self._offset is not None
        self._rest = b""
        self._offset = 0
        if not again and self._tail_bytes is not None and size > self._tail_bytes:
            self._offset = size - self._tail_bytes
            self._skip_first = True
