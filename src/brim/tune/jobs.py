"""A job that can be tuned: how it is run under a setting, what could be tried, what to change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from brim.record.ladder import Change, Ladder
from brim.tune.apply import Alternate, Prepared, advise, prepare
from brim.tune.candidates import Candidate, Job, candidates
from brim.tune.knobs import Settings
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

    def propose(outcome: Outcome, base: Settings) -> list[Candidate]:
        ranks = outcome.ranks
        on_device = "no accelerator" not in outcome.device and bool(outcome.device)
        job = Job(cores=max(1, cores // ranks), device=on_device, ranks=ranks)
        return candidates(outcome.findings, job)

    def change(ladder: Ladder) -> Change:
        if not ladder.settings:
            return Change()
        framework = ladder.frameworks[0] if ladder.frameworks else "torch"
        return advise(command, ladder.settings, framework)

    return Tunable(run=runner, propose=propose, change=change)


def _prepare(
    command: list[str], settings: Settings, cwd: Path,
    alternate: tuple[Settings, int] | None = None,
) -> Prepared:  # fmt: skip
    switch = Alternate(settings=alternate[0], every=alternate[1]) if alternate else None
    return prepare(command, settings, cwd, alternate=switch)
