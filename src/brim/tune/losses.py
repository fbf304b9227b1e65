"""Do two settings compute the same?  Told from the losses of the same steps.

Rounding makes two equal computations drift apart: a little at once, more with every update.  Runs
of one setting show how much a job drifts by itself (atomics, another order of sums); a job that
is not seeded shows other losses from its first step on, and can only be compared as a whole.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from brim.tune.knobs import Numbers

Losses = Mapping[int, float | None]

AT_ONCE: Final = 2e-3
"""Relative difference that rounding (bf16 included) may make before the first update,"""
A_STEP: Final = 1e-3
"""and that each update may add,"""
AT_MOST: Final = 2e-2
"""up to here."""
REPEATED: Final = 3.0
"""Times the largest difference between runs of one setting is still no difference."""
COMPARED: Final = 20
"""First steps that are compared: later the drift says more about chaos than about the setting."""
BEGINNING: Final = 5
"""First steps that tell whether a job is seeded; one alone may agree by chance."""
APART: Final = 4.0
"""Standard errors between two distributions that differ,"""
AS_A_WHOLE: Final = 0.1
"""and the least relative difference between them."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``same`` is None where nothing can be said."""

    same: bool | None
    words: str


def compare(before: Sequence[Losses], after: Losses, numbers: Numbers) -> Comparison:
    """``before``: runs of the setting that is compared with."""
    runs = [run for run in before if run]
    for n, value in after.items():
        if value is None and all(run.get(n, 0.0) is not None for run in runs):
            return Comparison(False, f"the loss of step {n} is not finite")
    common = sorted(set(after).intersection(*map(set, runs))) if runs and after else []
    if not common:
        return Comparison(None, "no losses were seen")
    if numbers == "lossy":
        return Comparison(True, _lossy(runs[-1], after, common))
    seeded = _seeded(runs, common)
    found = _by_step(runs, after, common) if seeded else None
    if found is None or (found.same is False and numbers == "draws"):
        return _as_a_whole(runs, after, common, seeded=seeded)
    return found


def _value(run: Losses, n: int) -> float:
    value = run[n]
    return math.nan if value is None else value


def _off(a: float, b: float) -> float:
    """Relative difference; against 1e-6 where the loss itself is about 0."""
    return abs(a - b) / max(abs(a), abs(b), 1e-6)


def _seeded(runs: Sequence[Losses], common: Sequence[int]) -> bool:
    """Do runs of one setting begin alike?  A single run is believed to be seeded."""
    first = runs[0]
    return all(
        _off(_value(first, n), _value(run, n)) <= _rounding(k)
        for run in runs[1:]
        for k, n in enumerate(common[:BEGINNING])
    )


def _rounding(k: int) -> float:
    """Relative difference that rounding may have made after ``k`` updates."""
    return min(AT_ONCE + k * A_STEP, AT_MOST)


def _by_step(runs: Sequence[Losses], after: Losses, common: Sequence[int]) -> Comparison:
    compared = common[:COMPARED]
    worst, at = 0.0, compared[0]
    beyond = 0
    for k, n in enumerate(compared):
        values = [_value(run, n) for run in runs]
        apart = REPEATED * max(_off(a, b) for a in values for b in values)
        off = min(_off(value, _value(after, n)) for value in values)
        if not off <= max(apart, _rounding(k)):  # NaN is beyond
            beyond += 1
        if off > worst:
            worst, at = off, n
    if beyond > len(compared) // 10:
        a, b = _value(runs[-1], at), _value(after, at)
        words = f"the loss of step {at} is {b:.4g} instead of {a:.4g}"
        return Comparison(False, f"{words}; {beyond} of {len(compared)} steps differ")
    return Comparison(True, f"equal to {max(worst, 1e-7):.1g} in {len(compared)} steps")


def _as_a_whole(
    runs: Sequence[Losses], after: Losses, common: Sequence[int], *, seeded: bool
) -> Comparison:
    """Means over the steps that all runs have: a faster run has come further down the curve.

    Steps of a curve are not independent, so that their spread alone would call every second
    unseeded run another one; runs of one setting, and a floor, bound what is no difference.
    """
    why = "random numbers are drawn in another order" if seeded else "the job is not seeded"
    means = [_mean(run, common) for run in runs]
    before, now = statistics.fmean(means), _mean(after, common)
    if len(common) < 5:
        return Comparison(None, f"too few losses to compare: {why}")
    spread = [_value(runs[0], n) for n in common]
    error = statistics.stdev(spread) * math.sqrt(2 / len(common))
    usual = max(
        APART * error, REPEATED * (max(means) - min(means)), AS_A_WHOLE * max(abs(before), 1e-6)
    )
    said = f"mean loss {now:.4g} against {before:.4g}"
    return Comparison(abs(now - before) <= usual, f"{said}, compared as a whole: {why}")


def _mean(run: Losses, common: Sequence[int]) -> float:
    return statistics.fmean(_value(run, n) for n in common)


def _lossy(before: Losses, after: Losses, common: Sequence[int]) -> str:
    off = statistics.median(_off(_value(before, n), _value(after, n)) for n in common)
    return f"allowed to differ; median difference {off:.2g} in {len(common)} steps"
