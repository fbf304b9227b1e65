"""How much faster, and is it more than noise?  Pairs of runs, taken in turn.

A run of a job differs from the next run of the same job by more than its steps differ among
themselves: memory lies elsewhere, other programs run, the device is warmer.  So the unit is the
run.  The spread between runs of one setting is learned from every setting that was run more than
once, together with a prior (4 % of a run's mean, on an accelerator 2 %, worth four degrees of
freedom), since two runs alone would often agree by chance.  Steps are paired by number: the same
seed gives the same data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from brim.record.ladder import Speedup

PRIOR_SPREAD: Final = 0.04
PRIOR_SPREAD_ON_DEVICE: Final = 0.02
"""Where an accelerator does the work, and the host's other programs only reach its launches."""
PRIOR_FREEDOM: Final = 4
FEWEST_STEPS: Final = 5
"""Steps that two runs must have in common to be paired by number."""
PRIOR_BLOCKS: Final = 0.01
"""Spread of the ratio of two neighbouring blocks within a run."""
FEWEST_BLOCK: Final = 2
FEWEST_BLOCKS: Final = 3
_Z: Final = 2.5758
"""Of the two-sided 99 % interval of the normal distribution."""

Steps = Mapping[int, float]
Pair = tuple[Steps, Steps]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Noise:
    """The spread between runs of one setting, in log seconds."""

    spread: float = PRIOR_SPREAD
    freedom: int = PRIOR_FREEDOM

    @classmethod
    def learned(cls, groups: Sequence[Sequence[Steps]], prior: float = PRIOR_SPREAD) -> Noise:
        """``groups``: runs of one setting each; those with a single run say nothing."""
        squares = PRIOR_FREEDOM * prior**2
        freedom = PRIOR_FREEDOM
        for runs in groups:
            means = [math.log(mean) for mean in _means(runs)]
            if len(means) >= 2:
                middle = math.fsum(means) / len(means)
                squares += math.fsum((m - middle) ** 2 for m in means)
                freedom += len(means) - 1
        return cls(spread=math.sqrt(squares / freedom), freedom=freedom)


def _means(runs: Sequence[Steps]) -> list[float]:
    """Mean step time of each run over the steps that all have, else over its own."""
    runs = [run for run in runs if run]
    if not runs:
        return []
    common = set.intersection(*(set(run) for run in runs))
    if len(common) < FEWEST_STEPS:
        return [math.fsum(run.values()) / len(run) for run in runs]
    return [math.fsum(run[n] for n in common) / len(common) for run in runs]


def speedup(pairs: Sequence[Pair], noise: Noise, *, work: float = 1.0) -> Speedup:
    """B against A; ``work``: what a step of B does, in steps of A.

    The estimate is the mean over pairs of ``log(mean A / mean B)``; its variance is that of the
    steps (paired, delta method) and that of the runs; the interval is Student's.
    """
    rows = [_pair(a, b) for a, b in pairs]
    n = len(rows)
    middle = math.fsum(row.ratio for row in rows) / n + math.log(work)
    within = math.fsum(row.variance for row in rows) / n
    error = math.sqrt((2 * noise.spread**2 + within) / n)
    reach = student(noise.freedom) * error
    singles = np.concatenate([row.singles for row in rows])
    return Speedup(
        ratio=math.exp(middle),
        low=math.exp(middle - reach),
        high=math.exp(middle + reach),
        median=float(np.exp(np.median(singles))) * work,
        pairs=n,
        steps=len(singles),
    )


@dataclass(frozen=True, slots=True)
class _Row:
    ratio: float
    variance: float
    singles: _Floats


def _pair(a: Steps, b: Steps) -> _Row:
    common = sorted(set(a) & set(b))
    if len(common) >= FEWEST_STEPS:
        first, second = (np.array([side[n] for n in common]) for side in (a, b))
        apart = first / first.mean() - second / second.mean()
        variance = float(apart.var(ddof=1)) / len(common)
        singles = np.log(first / second)
    else:  # the runs' windows do not meet: nothing pairs the steps
        first, second = np.array(list(a.values())), np.array(list(b.values()))
        variance = _relative(first) + _relative(second)
        singles = np.log(np.median(first) / second)
    return _Row(math.log(first.mean() / second.mean()), variance, singles)


def _relative(times: _Floats) -> float:
    """Variance of log(mean); a single step tells nothing and counts as 100 % off."""
    if len(times) < 2:
        return 1.0
    return float(times.var(ddof=1)) / len(times) / float(times.mean()) ** 2


def switched(steps: Steps, arms: Mapping[int, int]) -> Speedup | None:
    """Arm 1 against arm 0, of a run that switched between them; None with too few blocks.

    A block of arm 1 is set against the mean of the blocks before and after it, so that a steady
    drift cancels; the first step after a switch pays for it and is left out.
    """
    blocks = [block[1:] for block in _blocks(steps, arms)]
    if any(len(block) < FEWEST_BLOCK for block in blocks):
        return None
    logs = [math.log(math.fsum(block) / len(block)) for block in blocks]
    ratios = [(logs[i - 1] + logs[i + 1]) / 2 - logs[i] for i in range(1, len(logs) - 1, 2)]
    n = len(ratios)
    if n < FEWEST_BLOCKS:
        return None
    middle = math.fsum(ratios) / n
    freedom = PRIOR_FREEDOM + n - 1
    # Neighbours share a block: the spread of the ratios is 3/4 of what their mean varies by.
    squares = 4 / 3 * math.fsum((r - middle) ** 2 for r in ratios)
    spread = math.sqrt((PRIOR_FREEDOM * PRIOR_BLOCKS**2 + squares) / freedom)
    reach = student(freedom) * spread / math.sqrt(n)
    return Speedup(
        ratio=math.exp(middle),
        low=math.exp(middle - reach),
        high=math.exp(middle + reach),
        median=math.exp(float(np.median(ratios))),
        pairs=n,
        steps=sum(map(len, blocks[1::2])),
        switched=True,
    )


def _blocks(steps: Steps, arms: Mapping[int, int]) -> list[list[float]]:
    """Times of consecutive steps under one arm; a last block that was cut short is left out."""
    blocks: list[list[float]] = []
    last: int | None = None
    for n in sorted(n for n in steps if n in arms):
        if arms[n] != last:
            blocks.append([])
            last = arms[n]
        blocks[-1].append(steps[n])
    if blocks and len(blocks) > 1 and len(blocks[-1]) < len(blocks[-2]):
        blocks.pop()
    first = next((arms[n] for n in sorted(arms) if n in steps), 0)
    return blocks[1:] if first == 1 else blocks


def student(freedom: int) -> float:
    """99.5 % quantile of Student's t (Cornish-Fisher expansion, Abramowitz & Stegun 26.7.5);
    within 1.5 % of the true value from four degrees of freedom on."""
    z, v = _Z, float(freedom)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return z + sum(term / v**k for k, term in enumerate(terms, 1))
