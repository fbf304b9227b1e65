"""Runs a job once under a setting, and reads what it left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from brim import __version__
from brim.observe import launch
from brim.observe.devices import Sampler
from brim.record import run as runs
from brim.record.applied import read_applied
from brim.tune import process
from brim.tune.candidates import key_of
from brim.tune.knobs import Settings
from brim.tune.outcome import Outcome
from brim.tune.reading import LOG, Judge, read_outcome

FIRST_PATIENCE_S: Final = 600.0
"""Without a sign of life the job as it is counts as hung after this long: it may load a model."""
LEAST_PATIENCE_S: Final = 60.0
PATIENCE: Final = 3.0
"""Times the whole first run: compiling takes its time."""
_OWN: Final = ("devices.", "run.json")
"""Names of what brim writes beside the job."""


class Prepared(Protocol):
    """A command with settings applied, and what is added to its environment."""

    @property
    def command(self) -> list[str]: ...
    @property
    def env(self) -> Mapping[str, str]: ...


class Prepare(Protocol):
    """Applies settings to a command; ``alternate``: those that come and go inside the run, and
    after how many steps each time."""

    def __call__(
        self, command: list[str], settings: Settings, cwd: Path,
        alternate: tuple[Settings, int] | None = None,
    ) -> Prepared: ...  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """How much of a run is measured."""

    steps: int = 40
    least_s: float = 5.0
    most_s: float = 180.0
    """From the first step on; compilation lies within."""

    @property
    def block(self) -> int:
        """Steps between two switches, in a run that switches."""
        return max(5, self.steps // 8)

    def options(self, *, profile: bool = True, switching: bool = False) -> launch.Options:
        """A run that switches has as many steps under each setting as another run in all."""
        return launch.Options(
            steps=2 * self.steps if switching else self.steps,
            least_s=self.least_s,
            most_s=self.most_s,
            profile=profile,
            losses=True,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """How a run begins, when it has been measured, and where its records are then."""

    command: list[str]
    env: Mapping[str, str]
    measured: Callable[[], bool]
    records: Callable[[], Path | None]
    """The run directory; None when the job made none."""
    packed: bool = False
    """Rows are filled with as many samples as fit."""


class Starter(Protocol):
    """A run's beginning in its own folder."""

    def __call__(self, settings: Settings, folder: Path, alternate: Settings | None) -> Start: ...


def hooked(command: Sequence[str], prepare: Prepare, window: Window) -> Starter:
    """Any command, with brim's hooks in it; raises ``InputError`` when there is none such."""
    words = launch.resolve(command)
    profiled: set[tuple[object, ...]] = set()
    known: set[str] = set()

    def start(settings: Settings, folder: Path, alternate: Settings | None) -> Start:
        # a device's trace takes long to write: the first run of a setting has it, for its diagnosis
        profile = alternate is None and key_of(settings) not in profiled
        profiled.add(key_of(settings))
        fresh = set(settings) - known
        known.update(settings)
        switch = None if alternate is None else (alternate, window.block)
        prepared = prepare(words, settings, Path.cwd(), switch)
        options = window.options(profile=profile, switching=alternate is not None)
        return Start(
            command=prepared.command,
            env={**launch.environment(folder, options), **prepared.env},
            measured=lambda: runs.is_measured(folder) or in_vain(folder, fresh),
            records=lambda: folder,
        )

    return start


def in_vain(folder: Path, knobs: set[str]) -> bool:
    """Have all these knobs found nothing to act on, in every process that spoke?

    The rest of such a run would measure what has been measured before.
    """
    if not knobs:
        return False
    ranks = [read_applied(path).knobs for path in folder.glob("applied.rank*.jsonl")]
    said = [rank[id].state for rank in ranks for id in knobs if id in rank]
    return bool(said) and len(said) == len(ranks) * len(knobs) and "applied" not in said


class Runner:
    """Called with a setting, it gives the outcome of one more run.

    ``command`` names the runs; ``start`` is asked for each with a folder of its own.
    """

    def __init__(
        self,
        command: Sequence[str],
        root: Path,
        start: Starter,
        *,
        judge: Judge,
        host: dict[str, Any],
    ) -> None:
        self._command, self._root, self._start = list(command), root, start
        self._judge, self._host = judge, host
        self._first_s: float | None = None

    def __call__(self, settings: Settings, alternate: Settings | None = None) -> Outcome:
        folder = runs.create(self._root, self._command, self._host, __version__)
        start = self._start(settings, folder, alternate)
        begin = time.monotonic()
        with Sampler(folder, period_s=0.5):
            end = process.run(
                start.command, start.env, folder / LOG,
                measured=start.measured,
                progress=lambda: progress(folder),
                patience_s=self._patience(),
            )  # fmt: skip
        wall = time.monotonic() - begin
        runs.finish(folder, exit_code=end.code or 0, wall_s=wall)
        outcome = read_outcome(folder, start.records(), end, self._judge, wall, packed=start.packed)
        if self._first_s is None:
            self._first_s = wall
        # a device's trace takes seconds to judge, and the budget is the user's time
        return msgspec.structs.replace(outcome, wall_s=time.monotonic() - begin)

    def _patience(self) -> float:
        if self._first_s is None:
            return FIRST_PATIENCE_S
        return max(LEAST_PATIENCE_S, PATIENCE * self._first_s)


def progress(folder: Path) -> int:
    """Bytes that the job, not brim beside it, has written; its output counts too."""
    total = 0
    for path in folder.rglob("*"):
        if not path.name.startswith(_OWN):
            with contextlib.suppress(OSError):  # gone, or not to be read
                total += path.stat().st_size
    return total
