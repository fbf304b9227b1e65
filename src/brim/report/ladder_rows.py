"""A ladder in words and rows, for the terminal and the page alike."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from brim.record.findings import Finding
from brim.record.ladder import Ended, Figures, Ladder, Rejected, Rung, Speedup
from brim.report import words
from brim.units import duration, percent

_ENDED: Final[dict[Ended, str]] = {
    "ceiling": "no cause takes 5 % of the time any more",
    "nothing left": "no remedy is left that can be applied from outside",
    "budget": "the time was up",
    "interrupted": "it was interrupted; the same command goes on from here",
}
COLUMNS: Final = (
    "step_s", "samples_per_s", "tokens_per_s", "gpu_util", "tensor_active", "mfu", "input_wait",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A rung: its figures in the order of :func:`columns`, and what it brought."""

    name: str
    cells: list[str]
    faster: str = ""
    interval: str = ""
    in_all: str = ""
    step_s: float | None = None
    """A mean step for the work of a step of before, for the picture."""
    wait_s: float = 0.0
    """Of it, waiting for the loader."""
    cause: str = ""


def verdict(ladder: Ladder) -> str:
    """One sentence."""
    counted = f"{_count(len(ladder.rungs), 'change')} kept, {len(ladder.rejected)} undone"
    ended = _ENDED[ladder.ended]
    if not ladder.rungs:
        tried = f"{_count(len(ladder.rejected), 'change')} tried and undone"
        return f"Nothing is kept: {ended.removesuffix(' any more')} ({tried})."
    if ladder.total is None:
        return f"{counted}: {ended}."
    steps = _steps(ladder)
    return f"{times(ladder.total)} as fast ({interval(ladder.total)}){steps}; {counted}: {ended}."


def _steps(ladder: Ladder) -> str:
    before, after = ladder.before.step_s, ladder.rungs[-1].figures.step_s
    if before is None or after is None:
        return ""
    return f", {duration(after)} a step instead of {duration(before)}"


def times(speed: Speedup) -> str:
    return f"{speed.ratio:.2f}×"


def interval(speed: Speedup) -> str:
    """``1.21–1.35×, 99 %``."""
    return f"{speed.low:.2f}–{speed.high:.2f}×, 99 %"


def sample(speed: Speedup) -> str:
    """``3 pairs of runs, 120 of steps, median 1.24×``."""
    pairs, what = _count(speed.pairs, "pair"), "blocks in one run" if speed.switched else "runs"
    return f"{pairs} of {what}, {speed.steps} of steps, median {speed.median:.2f}×"


def _count(n: int, noun: str) -> str:
    return words.count(n, noun)


def columns(ladder: Ladder) -> list[str]:
    """Names of the figures that any rung has."""
    every = [ladder.before, *(rung.figures for rung in ladder.rungs)]
    return [name for name in COLUMNS if any(getattr(f, name) is not None for f in every)]


def heads(names: Sequence[str]) -> list[str]:
    return [words.METRICS[name][0] for name in names]


def rows(ladder: Ladder) -> list[Row]:
    """Before, and each step that was kept, in order; the last one is after."""
    names = columns(ladder)
    made = [_row("before", ladder.before, names, 1.0, ladder.before.step_s)]
    in_all = 1.0
    for rung in ladder.rungs:
        in_all *= rung.speed.ratio
        made.append(_of_rung(rung, names, in_all, ladder.before.step_s))
    return made


def _of_rung(rung: Rung, names: Sequence[str], in_all: float, before: float | None) -> Row:
    row = _row(f"+ {words.clean(rung.words)}", rung.figures, names, in_all, before)
    return Row(
        name=row.name,
        cells=row.cells,
        faster=times(rung.speed),
        interval=f"{rung.speed.low:.2f}–{rung.speed.high:.2f}×",
        in_all=f"{in_all:.2f}×",
        step_s=row.step_s,
        wait_s=row.wait_s,
        cause=rung.cause,
    )


def _row(
    name: str, figures: Figures, names: Sequence[str], in_all: float, before: float | None
) -> Row:
    step_s = before / in_all if before is not None else None
    waited = (figures.input_wait or 0.0) * (step_s or 0.0)
    return Row(name=name, cells=_cells(figures, names), step_s=step_s, wait_s=waited)


def _cells(figures: Figures, names: Sequence[str]) -> list[str]:
    values = [getattr(figures, name) for name in names]
    return [
        "–" if value is None else words.figure(name, value)[1]
        for name, value in zip(names, values, strict=True)
    ]


def kept(ladder: Ladder) -> list[tuple[str, str]]:
    """(number and name of a rung, what stands under it)."""
    return [
        (f"{number}  {words.clean(rung.words)}", "; ".join(details(rung)))
        for number, rung in enumerate(ladder.rungs, 1)
    ]


def details(rung: Rung) -> list[str]:
    """What stands under a rung: its cause, its sample, its loss, and what it brings at the end."""
    said = [f"against {rung.cause}"] if rung.cause else []
    said.append(sample(rung.speed))
    if rung.loss:
        said.append(f"loss: {rung.loss}")
    if rung.alone is not None:
        said.append(f"left out again at the end: {times(rung.alone)} with it")
    return [words.clean(text) for text in said]


def undone(rejected: Rejected) -> tuple[str, str]:
    """(what was tried, why it was undone)."""
    cause = f" (against {rejected.cause})" if rejected.cause else ""
    return words.clean(f"{rejected.words}{cause}"), words.clean(f"{rejected.fate}: {rejected.why}")


def change(ladder: Ladder) -> list[tuple[str, str]]:
    """What to do for good: (what it is, text); nothing where nothing was kept."""
    said = []
    made = ladder.change
    if made.command or made.environment:
        said.append(("command", words.clean(command_line(ladder))))
    if made.patch:
        said.append(("patch", words.clean(made.patch, keep_lines=True).rstrip("\n")))
    said += [("code", words.clean(text)) for text in made.code]
    return said


def command_line(ladder: Ladder) -> str:
    """As a shell takes it."""
    variables = [f"{name}={shlex.quote(v)}" for name, v in ladder.change.environment.items()]
    return " ".join([*variables, shlex.join(ladder.change.command or ladder.command)])


def remaining(ladder: Ladder) -> list[tuple[str, str]]:
    """Causes that are left: (cause and share, the remedy in words)."""
    return [
        (f"{words.clean(f.cause)} {percent(f.share)}", _remedy(f, ladder.frameworks))
        for f in ladder.remaining
    ]


def _remedy(finding: Finding, frameworks: list[str]) -> str:
    if not finding.remedies:
        return "no remedy is known"
    first = finding.remedies[0]
    settings = words.ordered_settings(first, frameworks)
    said = words.clean(first.summary)
    return f"{said}: {words.clean(settings[0][1])}" if settings else said


def notes(ladder: Ladder) -> list[str]:
    ran = f"{_count(ladder.runs, 'run')} of the job took {duration(ladder.wall_s)}"
    return [ran, *map(words.clean, ladder.notes)]
