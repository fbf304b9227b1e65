"""Which losses count as equal."""

from __future__ import annotations

import random

import pytest

from brim.tune.losses import compare

CURVE = {n: 3.0 - 0.03 * n for n in range(40)}


def _off(by: float, *, growing: bool = False) -> dict[int, float | None]:
    return {n: loss * (1 + by * (n if growing else 1)) for n, loss in CURVE.items()}


def _dice(seed: int, shift: float = 0.0) -> dict[int, float | None]:
    dice = random.Random(seed)
    return {n: 3.0 + shift + dice.gauss(0, 0.3) for n in range(40)}


def test_equal_losses_are_the_same() -> None:
    found = compare([CURVE], CURVE, "same")
    assert found.same is True
    assert found.words == "equal to 1e-07 in 20 steps"


def test_bfloat16_rounding_of_one_in_a_thousand_is_the_same() -> None:
    assert compare([CURVE], _off(1e-3), "same").same is True


def test_a_drift_that_grows_with_every_update_is_the_same() -> None:
    assert compare([CURVE], _off(8e-4, growing=True), "same").same is True


@pytest.mark.parametrize("by", [0.01, 0.1, -0.05])
def test_one_per_cent_at_once_is_another_loss_and_the_step_is_named(by: float) -> None:
    found = compare([CURVE], _off(by), "same")
    assert found.same is False
    assert "instead of" in found.words
    assert "20 steps differ" in found.words


def test_what_two_runs_of_one_setting_differ_by_is_no_difference() -> None:
    # 5 % apart from the second step on: the job is seeded, and drifts by itself
    again = {n: loss * (1.05 if n > 8 else 1.0) for n, loss in CURVE.items()}
    after = {n: loss * (0.96 if n > 8 else 1.0) for n, loss in CURVE.items()}
    assert compare([CURVE], after, "same").same is False
    assert compare([CURVE, again], after, "same").same is True


def test_a_job_without_a_seed_is_compared_as_a_whole() -> None:
    found = compare([_dice(1), _dice(2)], _dice(3), "same")
    assert found.same is True
    assert "not seeded" in found.words
    assert compare([_dice(1), _dice(2)], _dice(3, shift=1.0), "same").same is False


def test_a_faster_run_that_came_further_down_the_curve_is_no_other_loss() -> None:
    dice = random.Random(4)
    curves = [
        {n: 0.9**n * (1 + dice.gauss(0, 0.2)) for n in range(steps)} for steps in (40, 40, 300)
    ]
    assert compare(curves[:2], curves[2], "same").same is True


def test_two_unseeded_runs_tell_how_far_a_third_may_lie_from_them() -> None:
    before = [dict.fromkeys(range(40), level) for level in (1.0, 1.2)]
    assert compare(before, dict.fromkeys(range(40), 1.3), "same").same is True
    assert compare(before, dict.fromkeys(range(40), 2.0), "same").same is False


def test_a_knob_that_draws_other_numbers_is_compared_as_a_whole() -> None:
    before, after = _dice(1), _dice(2)
    assert compare([before, before], after, "same").same is False
    found = compare([before, before], after, "draws")
    assert found.same is True
    assert "another order" in found.words
    assert compare([before, before], _dice(2, shift=1.0), "draws").same is False


def test_a_lossy_knob_may_differ_and_the_difference_is_said() -> None:
    found = compare([CURVE], _off(0.05), "lossy")
    assert found.same is True
    assert "0.048" in found.words


@pytest.mark.parametrize("numbers", ["same", "draws", "lossy"])
def test_a_loss_that_is_not_finite_is_never_the_same(numbers: str) -> None:
    after = {**CURVE, 7: None}
    found = compare([CURVE], after, numbers)  # type: ignore[arg-type]
    assert found.same is False
    assert found.words == "the loss of step 7 is not finite"


def test_a_job_whose_own_loss_is_not_finite_is_not_blamed_on_the_setting() -> None:
    bad = {**CURVE, 7: None}
    assert compare([bad], bad, "same").same is not None
    assert "step 7 is not finite" not in compare([bad], bad, "same").words


@pytest.mark.parametrize(("before", "after"), [([], CURVE), ([{}], CURVE), ([CURVE], {})])
def test_without_losses_nothing_is_said(before: list, after: dict) -> None:
    assert compare(before, after, "same").same is None
