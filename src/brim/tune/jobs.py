"""A job that can be tuned: how it is run under a setting, what could be tried, what to change."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from brim.record.ladder import Change, Ladder
from brim.tune.apply import Alternate, Prepared, advise, prepare
from brim.tune.apply.command import read_command
from brim.tune.apply.frameworks import Known, batch_of
from brim.tune.apply.packages import lacking
from brim.tune.apply.preparing import config_text
from brim.tune.candidates import Candidate, Job, candidates
from brim.tune.knobs import Settings, Value
from brim.tune.outcome import Outcome
from brim.tune.reading import Judge
from brim.tune.runner import Runner, Window, hooked
from brim.tune.trials import Run


@dataclass(frozen=True, kw_only=True, slots=True)
class Tunable:
    """What the search needs to know of a job."""

    run: Run
    propose: Callable[[Outcome, Settings], list[Candidate]]
    change: Callable[[Ladder], Change]

    def finish(self, ladder: Ladder) -> Ladder:
        """With the change to make for good."""
        return msgspec.structs.replace(ladder, change=self.change(ladder))


def of_command(
    command: Sequence[str], runs: Path, *, judge: Judge, host: dict[str, Any], window: Window
) -> Tunable:
    """Any command that trains with torch, changed from outside.

    Raises :class:`brim.errors.InputError` when there is no such command.
    """
    runner = Runner(command, runs, hooked(command, _prepare, window), judge=judge, host=host)
    cores = int(host.get("usable") or host.get("cores") or 1)
    lacks = lacking(command)

    def propose(outcome: Outcome, base: Settings) -> list[Candidate]:
        ranks = outcome.ranks
        batch, accumulation = _batch(command, base)
        job = Job(
            cores=max(1, cores // ranks), device=outcome.on_device, ranks=ranks,
            batch=batch, accumulation=accumulation,
        )  # fmt: skip
        return [_checked(c, lacks) for c in candidates(outcome.findings, job)]

    def change(ladder: Ladder) -> Change:
        if not ladder.settings:
            return Change()
        framework = ladder.frameworks[0] if ladder.frameworks else "torch"
        return advise(command, ladder.settings, framework)

    return Tunable(run=runner, propose=propose, change=change)


def _batch(command: Sequence[str], base: Settings) -> tuple[int | None, int | None]:
    """As the job has it under ``base``."""
    invocation = read_command(_prepare(list(command), base, Path.cwd()).command, Path.cwd())
    return batch_of(Known(invocation, config_text(invocation)))


def _checked(candidate: Candidate, lacks: Mapping[tuple[str, Value], str]) -> Candidate:
    """With what is known to be missing before any run."""
    why = next((lacks[item] for item in candidate.settings.items() if item in lacks), "")
    return replace(candidate, absent=why)


def _prepare(
    command: list[str], settings: Settings, cwd: Path,
    alternate: tuple[Settings, int] | None = None,
) -> Prepared:  # fmt: skip
    switch = Alternate(settings=alternate[0], every=alternate[1]) if alternate else None
    return prepare(command, settings, cwd, alternate=switch)
