"""Waiting for what another thread or process does, however busy the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable


def until(true: Callable[[], object], seconds: float = 30.0) -> None:
    """Return as soon as ``true`` is; after ``seconds``, fail."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"it did not happen within {seconds:g} s"
        time.sleep(0.01)
