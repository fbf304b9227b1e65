"""Speed-ups by pairs of runs, and how sure they are."""

from __future__ import annotations

import math
import random

import pytest

from brim.tune.noise import PRIOR_FREEDOM, PRIOR_SPREAD, Noise, speedup, student, switched

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


def _switching(
    ratio: float, *, block: int = 5, blocks: int = 16, drift: float = 0.0, seed: int = 0
) -> tuple[dict[int, float], dict[int, int]]:
    dice = random.Random(seed)
    arms = {n: n // block % 2 for n in range(block * blocks)}
    steps = {}
    for n, arm in arms.items():
        after_switch = 3.0 if n % block == 0 and n else 1.0
        base = 0.1 / (ratio if arm else 1.0) * (1 + drift * n) * after_switch
        steps[n] = base * math.exp(dice.gauss(0, 0.02))
    return steps, arms


def test_a_run_that_switches_shows_three_per_cent_that_two_runs_would_not() -> None:
    seen = [switched(*_switching(1.03, seed=seed)) for seed in range(100)]
    assert all(found is not None and (found.pairs, found.switched) == (7, True) for found in seen)
    assert sum(found is not None and found.low > 1.0 for found in seen) >= 90


@pytest.mark.parametrize("drift", [0.0, 0.002, -0.002])
@pytest.mark.parametrize("ratio", [1.0, 1.03, 1.5])
def test_its_interval_holds_the_true_ratio_in_98_of_100_runs_though_the_machine_drifts(
    ratio: float, drift: float
) -> None:
    held = 0
    for seed in range(200):
        found = switched(*_switching(ratio, drift=drift, seed=seed))
        assert found is not None
        held += found.low <= ratio <= found.high
    assert held >= 196


def test_a_block_that_was_cut_short_and_an_arm_that_begins_late_are_left_out() -> None:
    steps, arms = _switching(1.5, blocks=10)
    cut = {n: s for n, s in steps.items() if 5 <= n < 48}
    found = switched(cut, arms)
    assert found is not None
    assert found.pairs == 3
    assert found.ratio == pytest.approx(1.5, abs=0.03)


@pytest.mark.parametrize("blocks", [0, 1, 2, 6])
def test_fewer_than_three_pairs_of_blocks_say_nothing(blocks: int) -> None:
    assert switched(*_switching(1.5, blocks=blocks)) is None
