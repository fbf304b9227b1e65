"""Writing the files that a user asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from brim.errors import UsageError


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
