"""Diagnose, apply the remedy with the largest expected gain, measure, keep or revert; again.

Every decision is a function of what runs gave, so that the log of runs is enough to go on after
an interruption (see ``trials``).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from brim.errors import BrimError
from brim.record.findings import Finding
from brim.record.ladder import Ended, Figures, Ladder, Rejected, Rung, Speedup
from brim.tune.candidates import Candidate, key_of
from brim.tune.judge import WORTH, Judge, Judgement
from brim.tune.knobs import KNOBS, Settings, Value, numbers_of, words
from brim.tune.noise import PRIOR_FREEDOM
from brim.tune.outcome import Outcome
from brim.tune.trials import OutOfBudget, Trials

EXPLORING: Final = 0.8
"""Share of the budget for trying; the rest tries the kept ones again."""
AGAIN: Final = 2.0
"""A remedy that did not help is tried again when its cause has grown by this factor: what hid it
may be gone."""

Propose = Callable[[Outcome, Settings], list[Candidate]]
"""What could be tried, by a run of the kept settings; largest expected gain first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Kept:
    candidate: Candidate
    settings: dict[str, Value]
    """What it changed, after the search among values."""
    judgement: Judgement
    alone: Speedup | None = None


class Tuner:
    """The whole search.  ``say`` is told each step as it happens."""

    def __init__(
        self,
        trials: Trials,
        propose: Propose,
        *,
        lossy: bool = False,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.trials, self._propose, self._lossy, self._say = trials, propose, lossy, say
        self._judge = Judge(trials, lambda text: say(f"  {text}"))
        self.base: dict[str, Value] = {}
        self.kept: list[_Kept] = []
        self.rejected: list[Rejected] = []
        self.notes: list[str] = []
        self._shares: dict[object, float] = {}
        self._too_large: set[object] = set()
        self._total: Speedup | None = None

    def tune(self) -> Ended:
        """Search to the end; what was found is in :meth:`ladder`.

        Raises :class:`BrimError` when the job as it is cannot be measured.  Once it was, Ctrl-C
        ends the search and keeps what was found.
        """
        self._say("measuring the job as it is")
        self._first()
        budget = self.trials.limit_s
        try:
            self.trials.limit_s = EXPLORING * budget
            ended = self._explore()
            self.trials.limit_s = budget
            self._confirm()
        except KeyboardInterrupt:
            return "interrupted"
        return ended

    def _first(self) -> None:
        outcome = self.trials.run({})
        if outcome.ending != "measured":
            raise BrimError(
                f"the job as it is cannot be tuned: it {_said(outcome)}",
                hint=f"its output is in {outcome.folder}/output.log" if outcome.folder else "",
            )

    # ---------------------------------------------------------------------------- exploring

    def _explore(self) -> Ended:
        try:
            while (candidate := self._next()) is not None:
                self._try(candidate)
        except OutOfBudget:
            return "budget"
        return "nothing left" if self._diagnosed().findings else "ceiling"

    def _diagnosed(self) -> Outcome:
        """The first run of the kept settings: on a device it is the one that was profiled."""
        return self.trials.measured(self.base)[0]

    def _next(self) -> Candidate | None:
        """The best candidate that is worth a trial now."""
        for candidate in self._propose(self._diagnosed(), self.base):
            if not self._lossy and not candidate.lossless:
                continue
            changed = self._changed(candidate.settings)
            if self._overturns(changed):
                continue
            if changed and self._is_new(changed, candidate.share):
                return candidate
        return None

    def _changed(self, settings: Settings) -> dict[str, Value]:
        return {k: v for k, v in settings.items() if self.base.get(k) != v}

    def _overturns(self, changed: Settings) -> bool:
        """Another choice for what has been chosen already: it was the less promising one."""
        return any(id in self.base and id in KNOBS and KNOBS[id].exclusive for id in changed)

    def _is_new(self, changed: Settings, share: float) -> bool:
        """Has it not been tried, or has its cause grown so much that it is worth another trial?"""
        key = key_of(changed)
        if key in self._shares and share <= AGAIN * self._shares[key]:
            return False
        self._shares[key] = max(share, 1e-9)
        return True

    def _try(self, candidate: Candidate) -> None:
        what = words(candidate.settings)
        if candidate.absent:
            self._reject(
                candidate, candidate.settings,
                Judgement(fate="not applied", why=candidate.absent),
            )  # fmt: skip
            return
        reason = f" against {candidate.cause} ({candidate.share:.0%})" if candidate.cause else ""
        self._say(f"trying {what}{reason}, up to {candidate.expected:.2g}× expected")
        trial = {**self.base, **candidate.settings}
        found = self._judge.compare(
            self.base, trial, numbers_of(candidate.settings), promised=candidate.expected
        )
        if not found.better:
            self._reject(candidate, candidate.settings, found)
            return
        self._say(f"kept: {what}")
        self._retry_what_fits_now(candidate.settings)
        start, before = self.base, len(self.kept)
        self.base = trial
        self.kept.append(_Kept(candidate=candidate, settings=candidate.settings, judgement=found))
        if candidate.axis is not None:
            self._search(candidate)
            if self.base != trial:
                self._restate(before, start)

    def _retry_what_fits_now(self, kept: Settings) -> None:
        """What ran out of memory is new again when a kept remedy sets some free."""
        if any(id in KNOBS and KNOBS[id].frees for id in kept):
            for key in self._too_large:
                self._shares.pop(key, None)
            self._too_large.clear()

    def _reject(self, candidate: Candidate, settings: Settings, found: Judgement) -> None:
        assert found.fate is not None
        if found.fate == "out of memory":
            self._too_large.add(key_of(self._changed(settings)))
        self._say(f"  undone: {found.fate}; {found.why}")
        self.rejected.append(
            Rejected(
                words=words(settings), settings=dict(settings), cause=candidate.cause,
                fate=found.fate, why=found.why, speed=found.speed,
            )
        )  # fmt: skip

    # ------------------------------------------------------------- search within a remedy

    def _search(self, candidate: Candidate) -> None:
        """Walk along the axis while it helps; only while the cause is still there."""
        axis = candidate.axis
        assert axis is not None
        values = list(axis.values)
        at = values.index(candidate.settings[axis.knob])
        for direction in (1, -1):
            moved = False
            while self._still(candidate.cause) and 0 <= at + direction < len(values):
                value = values[at + direction]
                if not self._step(candidate, axis.knob, value):
                    break
                at, moved = at + direction, True
            if moved:
                return

    def _still(self, cause: str) -> bool:
        """Is the cause, or another of its family (the next narrowest place), still found?"""
        family = cause.partition(".")[0]
        return any(f.cause.startswith(family) for f in self._diagnosed().findings)

    def _step(self, candidate: Candidate, knob: str, value: Value) -> bool:
        change = {knob: value}
        if not self._is_new(change, candidate.share):
            return False
        self._say(f"  trying {words(change)} instead of {self.base[knob]}")
        trial = {**self.base, **change}
        found = self._judge.compare(self.base, trial, numbers_of(change))
        if not found.better:
            self._reject(candidate, change, found)
            return False
        self._say(f"  kept: {words(change)}")
        self.base = trial
        last = self.kept[-1]
        self.kept[-1] = _Kept(
            candidate=candidate, settings={**last.settings, **change}, judgement=last.judgement
        )
        return True

    def _restate(self, at: int, start: Settings) -> None:
        """After a search the rung's speed is that of its last value against the rung before."""
        pairs = list(
            zip(self.trials.measured(start), self.trials.measured(self.base), strict=False)
        )
        speed = self._judge.speed(pairs)
        kept = self.kept[at]
        judgement = Judgement(speed=speed, loss=kept.judgement.loss, same=kept.judgement.same)
        self.kept[at] = _Kept(candidate=kept.candidate, settings=kept.settings, judgement=judgement)

    # ----------------------------------------------------------------------- trying again

    def _confirm(self) -> None:
        try:
            self._retest()
            self._measure_total()
        except OutOfBudget:
            self.notes.append("the time was up before all that was kept had been tried again")

    def _retest(self) -> None:
        """Leave out each kept step but the last, whose comparison was with all the others."""
        for kept in list(self.kept[:-1]):
            without = self._without(kept)
            if without == self.base:
                continue
            self._say(f"trying again without: {words(kept.settings)}")
            found = self._judge.compare(without, self.base, numbers_of(kept.settings))
            at = self.kept.index(kept)
            if found.speed is not None and found.speed.ratio < WORTH:
                self._drop(kept, without, found)
                continue
            self.kept[at] = _Kept(
                candidate=kept.candidate, settings=kept.settings, judgement=kept.judgement,
                alone=found.speed,
            )  # fmt: skip

    def _drop(self, kept: _Kept, without: dict[str, Value], found: Judgement) -> None:
        self._say(f"  not needed any more: {words(kept.settings)}")
        self.kept.remove(kept)
        self.base = without
        why = f"kept first, but the others do without it: {found.why}"
        self.rejected.append(
            Rejected(
                words=words(kept.settings), settings=kept.settings, cause=kept.candidate.cause,
                fate="not needed", why=why, speed=found.speed,
            )
        )  # fmt: skip

    def _without(self, left_out: _Kept) -> dict[str, Value]:
        settings: dict[str, Value] = {}
        for kept in self.kept:
            if kept is not left_out:
                settings.update(kept.settings)
        return settings

    def _measure_total(self) -> None:
        """After against before, one pair more: they were never run in turn."""
        if not self.base:
            return
        self._say("measuring before and after in turn")
        pairs = []
        before, after = self.trials.run({}), self.trials.run(self.base)
        if before.ending == after.ending == "measured":
            pairs.append((before, after))
        self._total = self._judge.speed([*self._first_and_last(), *pairs])

    def _first_and_last(self) -> list[tuple[Outcome, Outcome]]:
        before, after = self.trials.measured({}), self.trials.measured(self.base)
        return [(before[0], after[0])] if before and after else []

    # ----------------------------------------------------------------------------- result

    def ladder(self, command: Sequence[str], ended: Ended) -> Ladder:
        """What was found so far."""
        before = self.trials.measured({})
        diagnosed = self._diagnosed()
        total = self._total
        if total is None and self.base:
            total = self._judge.speed(self._first_and_last())
        return Ladder(
            command=list(command),
            device=diagnosed.device,
            frameworks=diagnosed.frameworks,
            before=figures(before),
            rungs=self._rungs(),
            total=total,
            rejected=self.rejected,
            settings=dict(self.base),
            remaining=_in_words_only(diagnosed.findings),
            ended=ended,
            runs=self.trials.count,
            wall_s=self.trials.spent_s,
            notes=[*self.notes, *self._spread()],
        )

    def _spread(self) -> list[str]:
        """What counts as noise here, once some setting was run twice."""
        noise = self._judge.noise()
        if noise.freedom == PRIOR_FREEDOM:
            return []
        return [f"runs of one setting are taken to differ by {noise.spread:.1%} (one sigma)"]

    def _rungs(self) -> list[Rung]:
        rungs, settings = [], dict[str, Value]()
        for kept in self.kept:
            settings.update(kept.settings)
            speed = kept.judgement.speed
            assert speed is not None, "what was kept was measured"
            rungs.append(
                Rung(
                    words=words(kept.settings), settings=kept.settings,
                    cause=kept.candidate.cause, speed=speed,
                    figures=figures(self.trials.measured(settings)),
                    loss=kept.judgement.loss, alone=kept.alone,
                )
            )  # fmt: skip
        return rungs


def _said(outcome: Outcome) -> str:
    return f"{outcome.ending}: {outcome.why}" if outcome.why else outcome.ending


def _in_words_only(findings: Sequence[Finding]) -> list[Finding]:
    return [msgspec.structs.replace(f, facts={}) for f in findings]


def figures(outcomes: Sequence[Outcome]) -> Figures:
    """Means over the runs of a setting; null where none has the figure."""

    def mean(name: str) -> float | None:
        values = [o.figures[name] for o in outcomes if name in o.figures]
        return statistics.fmean(values) if values else None

    return Figures(**{name: mean(name) for name in Figures.__struct_fields__})
