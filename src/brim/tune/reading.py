"""From what a run left behind to its outcome."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from brim.diagnose.live.window import choose
from brim.record.applied import Error
from brim.record.applied import Knob as AppliedKnob
from brim.record.findings import Diagnosis
from brim.record.losses import read_losses
from brim.record.run import Run, read_run
from brim.record.steps import Process
from brim.tune import process
from brim.tune.noise import FEWEST_STEPS
from brim.tune.outcome import Ending, Outcome

LOG: Final = "output.log"
"""The job's output, in the folder of its run."""

_MEMORY_WORDS: Final = (
    "out of memory", "OutOfMemoryError", "MemoryError", "Cannot allocate memory",
)  # fmt: skip

Judge = Callable[[Path], Diagnosis]


def read_outcome(
    folder: Path,
    records: Path | None,
    end: process.End,
    judge: Judge,
    wall_s: float,
    *,
    packed: bool = False,
) -> Outcome:
    """What the records tell about a run that ended so; its output lies in ``folder``.

    ``packed``: its rows are filled with as many samples as fit.
    """
    if records is None:
        ending, why = _failed(folder, [], end) or ("nothing measured", "there are no records")
        return Outcome(ending=ending, why=why, folder=str(folder), wall_s=wall_s)
    run = read_run(records)
    steps = _steps(run)
    found = _failed(folder, [r.error for r in run.applied.values() if r.error is not None], end)
    if found is None and len(steps) < FEWEST_STEPS:
        few = f"fewer than {FEWEST_STEPS} steady steps were seen"
        found = ("nothing measured", "; ".join(run.notes) or few)
    applied = [knob for rank in run.applied.values() for knob in rank.knobs.values()]
    if found is not None:
        return Outcome(
            ending=found[0], why=found[1], folder=str(folder), wall_s=wall_s, applied=applied
        )
    outcome = _measured(folder, records, run, steps, judge(records), wall_s, applied)
    work = _work(outcome.figures, packed=packed)
    return msgspec.structs.replace(outcome, work=work, packed=packed)


def _measured(
    folder: Path,
    records: Path,
    run: Run,
    steps: dict[int, float],
    diagnosis: Diagnosis,
    wall_s: float,
    applied: list[AppliedKnob],
) -> Outcome:
    step_s = statistics.fmean(steps.values())
    figures = {**diagnosis.metrics, "step_s": step_s}
    return Outcome(
        ending="measured",
        folder=str(folder),
        wall_s=wall_s,
        steps=steps,
        arms={s.n: s.arm for s in run.processes[0].steps if s.arm is not None},
        losses=_losses(records, run.processes[0]),
        figures=figures,
        findings=diagnosis.findings,
        frameworks=diagnosis.frameworks,
        device=diagnosis.device,
        ranks=max(1, len(run.processes)),
        applied=applied,
    )


def _failed(folder: Path, errors: list[Error], end: process.End) -> tuple[Ending, str] | None:
    """How a run failed, and its last words; None when it did not."""
    if end.how == "hung":
        return "hung", f"no sign of life any more; {_last_words(folder)}"
    if not end.code:
        return None
    text = f"{errors[0].name}: {errors[0].text}" if errors else _last_words(folder)
    full = any(e.out_of_memory for e in errors) or _ran_out_of_memory(folder, end.code)
    return ("out of memory" if full else "crashed"), f"exit code {end.code}; {text}"


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


def _work(figures: Mapping[str, float], *, packed: bool) -> float | None:
    rates = [figures.get("samples_per_s"), figures.get("tokens_per_s")]
    rate = next(filter(None, reversed(rates) if packed else rates), None)
    return rate * figures["step_s"] if rate else None
