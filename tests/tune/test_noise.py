"""Speed-ups by pairs of runs, and how sure they are."""

from __future__ import annotations

import math
import random

import pytest

from brim.tune.noise import PRIOR_FREEDOM, PRIOR_SPREAD, Noise, speedup, student

# 99.5 % quantiles, Abramowitz & Stegun table 26.10
TABLE = {4: 4.604, 5: 4.032, 6: 3.707, 8: 3.355, 10: 3.169, 15: 2.947, 30: 2.750, 120: 2.617}


@pytest.mark.parametrize("freedom", TABLE)
def test_student_s_quantiles_are_those_of_the_table(freedom: int) -> None:
    assert student(freedom) == pytest.approx(TABLE[freedom], rel=0.015)


def _run(mean: float, dice: random.Random, *, run: float, step: float, n: int = 40) -> dict:
    level = mean * math.exp(dice.gauss(0, run))
    return {k: level * math.exp(dice.gauss(0, step)) for k in range(n)}


def test_steps_of_equal_data_are_paired_so_that_their_own_spread_cancels() -> None:
    data = random.Random(3)
    work = [data.uniform(0.1, 1.0) for _ in range(40)]
    a, b = dict(enumerate(work)), {n: w / 1.2 for n, w in enumerate(work)}
    unpaired = {n + 1000: seconds for n, seconds in b.items()}
    quiet = Noise(spread=1e-9, freedom=1000)
    paired = speedup([(a, b)], quiet)
    assert paired.ratio == pytest.approx(1.2)
    assert paired.median == pytest.approx(1.2)
    assert paired.high / paired.low == pytest.approx(1.0, abs=1e-6)
    assert paired.steps == 40
    loose = speedup([(a, unpaired)], quiet)
    assert loose.ratio == pytest.approx(1.2)
    assert loose.high / loose.low > 1.3


def test_the_interval_holds_the_true_ratio_in_99_of_100_searches() -> None:
    held = 0
    for seed in range(400):
        dice = random.Random(seed)
        sides = [[_run(m, dice, run=0.03, step=0.1) for _ in range(3)] for m in (1.3, 1.0)]
        found = speedup(list(zip(*sides, strict=True)), Noise.learned(sides))
        held += found.low <= 1.3 <= found.high
    assert held >= 392


def test_runs_that_differ_widely_make_the_interval_wide_though_steps_agree() -> None:
    calm = [dict.fromkeys(range(40), 1.0), dict.fromkeys(range(40), 1.01)]
    wild = [dict.fromkeys(range(40), 1.0), dict.fromkeys(range(40), 1.5)]
    assert Noise.learned([calm]).spread < PRIOR_SPREAD < Noise.learned([wild]).spread
    assert Noise.learned([wild]).spread > 0.1


def test_single_runs_teach_nothing_about_the_spread_between_runs() -> None:
    noise = Noise.learned([[{0: 1.0}], [{0: 2.0}], []])
    assert noise.spread == pytest.approx(PRIOR_SPREAD)
    assert noise.freedom == PRIOR_FREEDOM


def test_more_pairs_narrow_the_interval_by_the_square_root_of_their_number() -> None:
    pair = (dict.fromkeys(range(40), 1.1), dict.fromkeys(range(40), 1.0))
    one, four = (speedup([pair] * k, Noise()) for k in (1, 4))
    assert math.log(one.high / one.low) == pytest.approx(2 * math.log(four.high / four.low))
    assert four.pairs == 4


def test_a_step_that_does_twice_the_work_in_the_same_time_is_twice_as_fast() -> None:
    same = dict.fromkeys(range(40), 1.0)
    found = speedup([(same, same)], Noise(), work=2.0)
    assert found.ratio == pytest.approx(2.0)
    assert found.median == pytest.approx(2.0)
    assert found.low < 2.0 < found.high
