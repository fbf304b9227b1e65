"""Runs a job once under a setting, with brim's hooks in it, and reads what it left."""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

from brim import __version__
from brim.diagnose.live.window import choose
from brim.observe import launch
from brim.observe.devices import Sampler
from brim.record import run as runs
from brim.record.findings import Diagnosis
from brim.record.losses import read_losses
from brim.record.run import Run, read_run
from brim.record.steps import Process
from brim.tune import process
from brim.tune.knobs import Settings
from brim.tune.noise import FEWEST_STEPS
from brim.tune.outcome import Ending, Outcome

FIRST_PATIENCE_S: Final = 600.0
"""Without a sign of life the job as it is counts as hung after this long: it may load a model."""
LEAST_PATIENCE_S: Final = 60.0
PATIENCE: Final = 3.0
"""Times the whole first run: compiling takes its time."""
LOG: Final = "output.log"

_MEMORY_WORDS = ("out of memory", "OutOfMemoryError", "MemoryError", "Cannot allocate memory")


class Prepared(Protocol):
    """The command of a run and what is added to its environment."""

    @property
    def command(self) -> list[str]: ...
    @property
    def env(self) -> Mapping[str, str]: ...


Prepare = Callable[[Sequence[str], Settings, Path], Prepared]
Judge = Callable[[Path], Diagnosis]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """How much of a run is measured."""

    steps: int = 40
    least_s: float = 5.0
    most_s: float = 90.0

    def options(self) -> launch.Options:
        return launch.Options(
            steps=self.steps, least_s=self.least_s, most_s=self.most_s, losses=True
        )


class Runner:
    """Called with a setting, it gives the outcome of one more run."""

    def __init__(
        self,
        command: Sequence[str],
        root: Path,
        *,
        prepare: Prepare,
        judge: Judge,
        host: dict[str, Any],
        window: Window,
    ) -> None:
        self._command, self._root = launch.resolve(command), root
        self._prepare, self._judge = prepare, judge
        self._host, self._window = host, window
        self._first_s: float | None = None

    def __call__(self, settings: Settings) -> Outcome:
        prepared = self._prepare(self._command, settings, Path.cwd())
        folder = runs.create(self._root, prepared.command, self._host, __version__)
        env = {**launch.environment(folder, self._window.options()), **prepared.env}
        begin = time.monotonic()
        with Sampler(folder, period_s=0.5):
            end = process.run(
                prepared.command, env, folder / LOG,
                measured=lambda: runs.is_measured(folder),
                progress=lambda: progress(folder),
                patience_s=self._patience(),
            )  # fmt: skip
        wall = time.monotonic() - begin
        runs.finish(folder, exit_code=end.code or 0, wall_s=wall)
        outcome = read_outcome(folder, end, self._judge, wall)
        if self._first_s is None:
            self._first_s = wall
        return outcome

    def _patience(self) -> float:
        if self._first_s is None:
            return FIRST_PATIENCE_S
        return max(LEAST_PATIENCE_S, PATIENCE * self._first_s)


def progress(folder: Path) -> int:
    """Bytes that the job, not brim beside it, has written; its output counts too."""
    total = 0
    for entry in os.scandir(folder):
        if not entry.name.startswith(("devices.", "run.json")):
            total += entry.stat().st_size
    return total


def read_outcome(folder: Path, end: process.End, judge: Judge, wall_s: float) -> Outcome:
    """What a run directory tells about a run that ended so."""
    run = read_run(folder)
    applied = [knob for rank in run.applied.values() for knob in rank.knobs.values()]
    ending, why = _ending(folder, run, end)
    if ending != "measured":
        return Outcome(ending=ending, why=why, folder=str(folder), wall_s=wall_s, applied=applied)
    steps = _steps(run)
    diagnosis = judge(folder)
    step_s = statistics.fmean(steps.values())
    figures = {**diagnosis.metrics, "step_s": step_s}
    return Outcome(
        ending="measured",
        folder=str(folder),
        wall_s=wall_s,
        steps=steps,
        losses=_losses(folder, run.processes[0]),
        work=_work(figures, step_s),
        figures=figures,
        findings=diagnosis.findings,
        frameworks=diagnosis.frameworks,
        device=diagnosis.device,
        ranks=max(1, len(run.processes)),
        applied=applied,
    )


def _ending(folder: Path, run: Run, end: process.End) -> tuple[Ending, str]:
    if end.how == "hung":
        return "hung", f"no sign of life any more; {_last_words(folder)}"
    if end.code:
        errors = [rank.error for rank in run.applied.values() if rank.error is not None]
        text = f"{errors[0].name}: {errors[0].text}" if errors else _last_words(folder)
        full = any(e.out_of_memory for e in errors) or _ran_out_of_memory(folder, end.code)
        return ("out of memory" if full else "crashed"), f"exit code {end.code}; {text}"
    if len(_steps(run)) < FEWEST_STEPS:
        why = "; ".join(run.notes) or f"fewer than {FEWEST_STEPS} steady steps were seen"
        return "nothing measured", why
    return "measured", ""


def _ran_out_of_memory(folder: Path, code: int) -> bool:
    """Python says so; SIGKILL from nowhere is the kernel, short of memory."""
    tail = _tail(folder)
    return code == 128 + 9 or any(word in tail for word in _MEMORY_WORDS)


def _tail(folder: Path) -> str:
    try:
        with (folder / LOG).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 8192))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _last_words(folder: Path) -> str:
    lines = [line.strip() for line in _tail(folder).splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it printed nothing"


def _steps(run: Run) -> dict[int, float]:
    """Number of a steady step → seconds, the mean over ranks; what one rank lacks is left out."""
    ranks = [_walls(process) for process in run.processes]
    if not ranks:
        return {}
    common = set.intersection(*map(set, ranks))
    return {n: statistics.fmean(rank[n] for rank in ranks) for n in sorted(common)}


def _walls(process: Process) -> dict[int, float]:
    chosen = choose(process)
    if chosen.clock == "exit":
        return {}
    return {step.n: step.wall - step.own for step in chosen.steps}


def _losses(folder: Path, process: Process) -> dict[int, float | None]:
    """Of all steps, the warm-up included: the first ones show best who computes the same."""
    found = read_losses(folder, process)
    return {n: loss if math.isfinite(loss) else None for n, loss in found.items()}


def _work(figures: Mapping[str, float], step_s: float) -> float | None:
    rate = figures.get("samples_per_s") or figures.get("tokens_per_s")
    return rate * step_s if rate else None
