"""What the callbacks of all trainers do: observe from the start of training to its end."""

from __future__ import annotations

import contextlib
import importlib
import sys
from pathlib import Path
from typing import Any

from brim.api.observing import Observation, observe
from brim.errors import InputError


def base(name: str, *packages: str) -> Any:
    """The trainer's class that a callback derives from: of the package that the program has
    imported, else of the first that is installed.

    Raises :class:`InputError` where none is.
    """
    for package in sorted(packages, key=lambda p: p not in sys.modules):
        try:
            return getattr(importlib.import_module(package), name)
        except ImportError:
            continue
    first = packages[0].partition(".")[0]
    raise InputError(f"{first} is not installed", hint=f"pip install {first}")


class Session:
    """One observed training, begun and ended by a trainer's callback."""

    def __init__(self, run_dir: str | Path | None, *, steps: int, show: bool) -> None:
        self._run_dir, self._steps, self._show = run_dir, steps, show
        self._open: contextlib.ExitStack | None = None
        self.seen: Observation | None = None

    def begin(self) -> None:
        """Once per training; a trainer that trains twice is measured twice."""
        self._open = contextlib.ExitStack()
        self.seen = self._open.enter_context(observe(self._run_dir, steps=self._steps))

    def end(self, error: BaseException | None = None) -> None:
        """Judge what was seen and print it, unless training failed."""
        if self._open is None or self.seen is None:
            return
        stack, self._open = self._open, None
        if error is not None:
            stack.__exit__(type(error), error, error.__traceback__)
            return
        stack.close()
        if self._show:
            _print(self.seen)


def _print(seen: Observation) -> None:
    """The report, on standard error as that of ``brim diagnose``."""
    if seen.why_none:
        print(f"brim: {seen.why_none}", file=sys.stderr)
    if seen.diagnosis is None:
        return
    from rich.console import Console

    from brim.report.terminal import render

    render(seen.diagnosis, Console(file=sys.stderr))
    print(f"brim: records in {seen.folder}", file=sys.stderr)
