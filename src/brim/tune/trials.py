"""Runs of the job, each written down when it has ended, so that none is ever repeated.

The search decides by what runs gave and by nothing else.  So the log of runs is its whole state:
after a crash or Ctrl-C it is started from the beginning, is handed the same outcomes from the log,
and comes to the same place without running anything.
"""

from __future__ import annotations

import contextlib
import os
import statistics
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from brim.record.lines import decoded
from brim.tune.candidates import key_of
from brim.tune.knobs import Settings, Value
from brim.tune.outcome import Outcome

Part = tuple[tuple[str, Value], ...]
Key = tuple[Part, Part | None]
FILE = "trials.jsonl"


class OutOfBudget(Exception):
    """Another run would take longer than the time that is left."""


class Run(Protocol):
    """Runs the job once; with ``alternate``, settings laid over the others and taken away in turn
    inside the run."""

    def __call__(self, settings: Settings, alternate: Settings | None = None) -> Outcome: ...


class _Line(msgspec.Struct, kw_only=True):
    settings: dict[str, Value]
    outcome: Outcome
    alternate: dict[str, Value] | None = None


class Trials:
    """Outcomes by setting; :meth:`run` adds one more run of a setting."""

    def __init__(
        self,
        run: Run,
        *,
        budget_s: float,
        path: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.limit_s = budget_s
        """Runs begin while the time they have taken so far, and one more, stay below."""
        self.spent_s = 0.0
        self.count = 0
        self._run, self._path, self._say = run, path, say
        self._logged: dict[Key, list[Outcome]] = defaultdict(list)
        self._taken: dict[Key, list[Outcome]] = defaultdict(list)
        self._walls: list[float] = []
        if path is not None and path.exists():
            for line in decoded(path, _Line):
                self._logged[_key(line.settings, line.alternate)].append(line.outcome)

    @property
    def logged(self) -> int:
        """Runs in the log, also those that the search has not asked for yet."""
        return sum(map(len, self._logged.values()))

    def of(self, settings: Settings) -> list[Outcome]:
        """The runs of a setting so far, in order."""
        return list(self._taken[_key(settings)])

    def measured(self, settings: Settings) -> list[Outcome]:
        return [o for o in self.of(settings) if o.ending == "measured"]

    def groups(self) -> list[list[Outcome]]:
        """Runs that were measured, by setting; those that switched are another matter."""
        plain = [runs for (_, alternate), runs in self._taken.items() if alternate is None]
        return [[o for o in runs if o.ending == "measured"] for runs in plain]

    def run(self, settings: Settings, alternate: Settings | None = None) -> Outcome:
        """The next run of a setting, from the log where it is known.

        Raises :class:`OutOfBudget` before a run that would not fit.
        """
        key = _key(settings, alternate)
        taken, logged = self._taken[key], self._logged[key]
        if len(taken) < len(logged):
            outcome = logged[len(taken)]
        else:
            if self.count and self.spent_s + self._next_s() > self.limit_s:
                raise OutOfBudget
            outcome = self._run(settings) if alternate is None else self._run(settings, alternate)
            logged.append(outcome)
            other = None if alternate is None else dict(alternate)
            self._write(_Line(settings=dict(settings), outcome=outcome, alternate=other))
        taken.append(outcome)
        self.count += 1
        self.spent_s += outcome.wall_s
        self._walls.append(outcome.wall_s)
        return outcome

    def _next_s(self) -> float:
        """As long as the last run, which the next one often repeats, or as most: one that had
        nothing to measure ended early."""
        return max(self._walls[-1], statistics.median(self._walls))

    def _write(self, line: _Line) -> None:
        """One write of a whole line; a reader leaves out one that was cut."""
        if self._path is None:
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                self._close_cut_line(fd)
                os.write(fd, msgspec.json.encode(line) + b"\n")
                os.fsync(fd)
            finally:
                os.close(fd)
        except OSError as error:
            self._say(f"{self._path}: cannot be written ({error.strerror}); going on without it")
            self._path = None

    def _close_cut_line(self, fd: int) -> None:
        """What follows a cut line must not be lost with it."""
        assert self._path is not None
        with self._path.open("rb") as file, contextlib.suppress(OSError):
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                os.write(fd, b"\n")


def _key(settings: Settings, alternate: Settings | None = None) -> Key:
    return key_of(settings), None if alternate is None else key_of(alternate)
