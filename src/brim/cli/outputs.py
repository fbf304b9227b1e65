"""Writing the files that a user asked for."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from brim.errors import UsageError


def check(*paths: Path | None) -> None:
    """What cannot be written is said before the work, not after hours of it."""
    for path in filter(None, paths):
        if path.is_dir():
            raise UsageError(f"{path}: is a folder", hint=f"name a file, as {path / 'FILE'}")
        if not path.parent.is_dir():
            raise UsageError(f"{path}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK | os.X_OK):
            raise UsageError(f"{path}: the folder {path.parent} may not be written to")


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """A path that cannot be written is a message, not a traceback."""
    try:
        yield
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be written ({error.strerror or error})",
            hint="" if path.parent.is_dir() else f"there is no folder {path.parent}",
        ) from None


def write(path: Path, data: bytes) -> None:
    """The whole file or none of it."""
    from brim.files import write_atomic

    with writing(path):
        write_atomic(path, data)


def write_json(path: Path, value: object) -> None:
    """``value`` as msgspec encodes it, indented."""
    import msgspec

    write(path, msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
