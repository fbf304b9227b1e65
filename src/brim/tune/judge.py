"""One setting against another: run both in turn until it is clear which is better, or too close.

A large difference is clear after a pair of runs, a small one takes more; what is still inside the
noise after ``MOST_PAIRS`` is not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from brim.record.ladder import Fate, Speedup
from brim.tune import losses
from brim.tune.knobs import KNOBS, Numbers, Settings, words
from brim.tune.noise import (
    PRIOR_SPREAD,
    PRIOR_SPREAD_ON_DEVICE,
    Noise,
    Pair,
    speedup,
    switched,
)
from brim.tune.outcome import Outcome
from brim.tune.trials import Trials

MOST_PAIRS: Final = 4
WORTH: Final = 1.01
"""Less than this is not worth a setting that somebody has to understand later."""
MUCH: Final = 1.1
"""Promised, it makes a second pair worth its time when the first one was slower."""
_SAME_WORK: Final = 0.1
"""Batches of texts vary; a step whose work differs by more has another size."""
_SAME_WORK_PACKED: Final = 0.01
"""Of packed rows, whose tokens are what a longer row holds more of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judgement:
    """``fate`` is empty when B is better."""

    fate: Fate | None = None
    why: str = ""
    speed: Speedup | None = None
    loss: str = ""
    same: bool | None = None
    """Whether the losses agree; null where that cannot be said."""

    @property
    def better(self) -> bool:
        return self.fate is None


class Judge:
    """Compares settings by running them."""

    def __init__(self, trials: Trials, say: Callable[[str], None] = lambda text: None) -> None:
        self.trials, self._say = trials, say

    def compare(
        self, a: Settings, b: Settings, numbers: Numbers, *, promised: float = 1.0
    ) -> Judgement:
        """B against A, which has been measured.

        ``numbers``: what the change may do to them.  ``promised``: the speed-up that is expected;
        who promises much is not turned away by a single pair of runs.
        """
        latest = self.trials.measured(a)[-1:]
        pairs: list[tuple[Outcome, Outcome]] = []
        checked = Judgement()
        for k in range(MOST_PAIRS):
            before = latest[0] if k == 0 and latest else self.trials.run(a)
            known = self.trials.measured(b)
            after = known[-1] if k == 0 and known else self.trials.run(b)
            if before.ending != "measured":
                why = f"the job without it {before.ending}: {before.why}"
                return Judgement(fate="undecided", why=why, speed=self.speed(pairs))
            checked = self._check(a, b, after, numbers)
            if not checked.better:
                return checked
            pairs.append((before, after))
            speed = self.speed(pairs)
            assert speed is not None
            self._say(_said(speed))
            fate = _decided(speed, promised, last=k + 1 == MOST_PAIRS)
            if fate == "undecided" and k == 0:
                found = self._switching(a, b)
                if found is not None:
                    speed, fate = found, _decided(found, 1.0, last=True)
            if fate != "undecided":
                return Judgement(
                    fate=fate, why=_said(speed), speed=speed, loss=checked.loss, same=checked.same
                )
        raise AssertionError("the last pair decides")

    def _switching(self, a: Settings, b: Settings) -> Speedup | None:
        """Both inside one run, block by block, which sees smaller differences; None where the
        change cannot be made in a running process, or the run says nothing."""
        change = {id: value for id, value in b.items() if a.get(id) != value}
        if set(a) - set(b) or not all(id in KNOBS and KNOBS[id].live for id in change):
            return None
        outcome = self.trials.run(a, change)
        if outcome.ending != "measured" or outcome.missing(set(change)):
            return None
        speed = switched(outcome.steps, outcome.arms)
        if speed is not None:
            self._say(_said(speed))
        return speed

    def _check(self, a: Settings, b: Settings, after: Outcome, numbers: Numbers) -> Judgement:
        """Did it run, with what was asked for, and does it compute the same?"""
        changed = {id for id, value in b.items() if a.get(id) != value}
        missing = after.missing(changed)
        ran = after.ending in ("measured", "nothing measured")  # the latter: ended for this reason
        if changed and set(missing) == changed and ran:
            why = "; ".join(f"{words({id: b[id]})}: {why}" for id, why in missing.items())
            return Judgement(fate="not applied", why=why)
        if after.ending != "measured":
            return Judgement(fate=after.fate, why=after.why)
        found = self._losses(a, after, numbers)
        if found.same is False:
            finite = None not in after.losses.values()
            fate: Fate = "loss differs" if finite else "not finite"
            return Judgement(fate=fate, why=found.words, loss=found.words, same=False)
        return Judgement(loss=found.words, same=found.same)

    def _losses(self, a: Settings, after: Outcome, numbers: Numbers) -> losses.Comparison:
        """One run of A does not show whether the job is seeded: before a setting is blamed for
        another loss, A has run twice."""
        before = [o.losses for o in self.trials.measured(a)]
        found = losses.compare(before, after.losses, numbers)
        if found.same is False and len(before) == 1 and None not in after.losses.values():
            again = self.trials.run(a)
            if again.ending == "measured":
                found = losses.compare([*before, again.losses], after.losses, numbers)
        return found

    def speed(self, pairs: Sequence[tuple[Outcome, Outcome]]) -> Speedup | None:
        """None without a pair."""
        if not pairs:
            return None
        steps: list[Pair] = [(a.steps, b.steps) for a, b in pairs]
        return speedup(steps, self.noise(), work=_work(*pairs[-1]))

    def noise(self) -> Noise:
        """The spread between runs of one setting, as far as runs were repeated."""
        groups = self.trials.groups()
        on_device = any(o.on_device for group in groups for o in group)
        prior = PRIOR_SPREAD_ON_DEVICE if on_device else PRIOR_SPREAD
        return Noise.learned([[o.steps for o in group] for group in groups], prior)


def _work(a: Outcome, b: Outcome) -> float:
    """Work of a step of B by that of a step of A; 1 where it is equal or not known."""
    same = _SAME_WORK_PACKED if a.packed and b.packed else _SAME_WORK
    if not a.work or not b.work or abs(b.work / a.work - 1) <= same:
        return 1.0
    return b.work / a.work


def _decided(speed: Speedup, promised: float, *, last: bool) -> Fate | None:
    """None: better; ``undecided``: another pair is needed."""
    if speed.low > 1.0 and speed.ratio >= WORTH:
        return None
    if speed.high < WORTH or (speed.pairs >= 2 and speed.ratio < WORTH):
        return "no gain"
    if speed.ratio < 1.0 and promised < MUCH:
        return "no gain"
    return "not beyond the noise" if last else "undecided"


def _said(speed: Speedup) -> str:
    what = "blocks within a run" if speed.switched else "runs"
    return (
        f"{speed.ratio:.3g}× ({speed.low:.3g} – {speed.high:.3g}, 99 %; median "
        f"{speed.median:.3g}×; {speed.pairs} pair{'s' * (speed.pairs != 1)} of {what}, "
        f"{speed.steps} of steps)"
    )
