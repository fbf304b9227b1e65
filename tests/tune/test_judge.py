"""One setting against another: how many runs, in which order, and the verdict."""

from __future__ import annotations

import math

import msgspec
import pytest

from brim.record.applied import Knob as Applied
from brim.tune.judge import MOST_PAIRS, Judge
from brim.tune.knobs import Settings
from brim.tune.outcome import Outcome
from brim.tune.trials import Trials

A: Settings = {}
B: Settings = {"debug": False}
LOSSES: dict[int, float | None] = {n: 3.0 - 0.03 * n for n in range(40)}


class _Job:
    """Mean step times of the runs of A and of B, in turn; the last one repeats."""

    def __init__(self, a: list[float], b: list[float], **b_is: object) -> None:
        self.times = {"A": a, "B": b}
        self.b_is = b_is
        self.order = ""

    def __call__(self, settings: Settings) -> Outcome:
        side = "B" if settings else "A"
        self.order += side
        times = self.times[side]
        mean = times[min(self.order.count(side), len(times)) - 1]
        # 40 steps with a spread of 3 %, the same in each run
        steps = {n: mean * (1 + 0.04 * math.sin(n)) for n in range(40)}
        given = {"ending": "measured", "losses": LOSSES, **(self.b_is if settings else {})}
        return Outcome(steps=steps, wall_s=1.0, **given)  # type: ignore[arg-type]


def _judge(job: _Job) -> Judge:
    trials = Trials(job, budget_s=1e6)
    trials.run(A)
    return Judge(trials)


def test_a_large_gain_is_clear_after_one_pair() -> None:
    job = _Job([1.0], [0.5])
    found = _judge(job).compare(A, B, "same")
    assert found.better
    assert job.order == "AB"
    assert found.speed is not None
    assert found.speed.ratio == pytest.approx(2.0)


def test_a_small_gain_takes_runs_of_both_in_turn() -> None:
    job = _Job([1.0], [0.93])
    found = _judge(job).compare(A, B, "same")
    assert found.better
    assert job.order in ("ABAB", "ABABAB", "ABABABAB")


def test_a_loss_of_speed_is_clear_after_one_pair() -> None:
    job = _Job([1.0], [1.02])
    found = _judge(job).compare(A, B, "same")
    assert found.fate == "no gain"
    assert job.order == "AB"


def test_who_promises_much_is_not_turned_away_by_one_disturbed_run() -> None:
    job = _Job([1.0, 1.0], [1.02, 0.6])
    found = _judge(job).compare(A, B, "same", promised=1.4)
    assert job.order.startswith("ABAB")
    assert found.speed is not None
    assert found.speed.ratio > 1.2
    clearly = _Job([1.0], [1.5])
    assert _judge(clearly).compare(A, B, "same", promised=1.4).fate == "no gain"
    assert clearly.order == "AB"


def test_less_than_one_per_cent_is_no_gain_after_two_pairs() -> None:
    job = _Job([1.0], [0.995])
    assert _judge(job).compare(A, B, "same").fate == "no gain"
    assert job.order == "ABAB"


def test_a_gain_within_the_noise_is_not_kept_after_four_pairs() -> None:
    job = _Job([1.0, 1.2, 0.9, 1.1], [0.95, 1.1, 0.9, 1.0])
    found = _judge(job).compare(A, B, "same")
    assert found.fate == "not beyond the noise"
    assert job.order == "AB" * MOST_PAIRS
    assert found.speed is not None
    assert found.speed.pairs == MOST_PAIRS


def test_a_run_that_failed_is_judged_by_that_alone() -> None:
    job = _Job([1.0], [0.1], ending="out of memory", why="CUDA out of memory", steps={})
    job.b_is.pop("steps")
    found = _judge(job).compare(A, B, "same")
    assert (found.fate, found.why) == ("out of memory", "CUDA out of memory")
    assert job.order == "AB"


def test_before_another_loss_is_blamed_on_a_setting_the_job_has_run_twice() -> None:
    other = {n: 1.2 * loss for n, loss in LOSSES.items() if loss is not None}
    job = _Job([1.0], [0.5], losses=other)
    found = _judge(job).compare(A, B, "same")
    assert found.fate == "loss differs"
    assert job.order == "ABA"


def test_a_loss_that_is_not_finite_has_a_name_of_its_own_and_needs_no_second_run() -> None:
    job = _Job([1.0], [0.5], losses={**LOSSES, 3: None})
    found = _judge(job).compare(A, B, "same")
    assert found.fate == "not finite"
    assert job.order == "AB"


def test_a_knob_that_was_applied_nowhere_is_said_with_its_reason() -> None:
    nowhere = [Applied(id="debug", state="unavailable", reason="no debug mode was on")]
    job = _Job([1.0], [0.5], applied=nowhere)
    found = _judge(job).compare(A, B, "same")
    assert found.fate == "not applied"
    assert found.why == "debug modes off: no debug mode was on"


def test_a_run_that_was_ended_because_its_knob_had_nothing_to_act_on_says_that() -> None:
    nowhere = [Applied(id="debug", state="failed", reason="TypeError")]
    job = _Job([1.0], [0.5], ending="nothing measured", applied=nowhere)
    assert _judge(job).compare(A, B, "same").fate == "not applied"
    crashed = _Job([1.0], [0.5], ending="crashed", why="exit code 1", applied=nowhere)
    assert _judge(crashed).compare(A, B, "same").fate == "crashed"


def test_a_knob_that_one_of_two_ranks_applied_is_applied() -> None:
    both = [Applied(id="debug", state=state) for state in ("unavailable", "applied")]  # type: ignore[arg-type]
    assert _judge(_Job([1.0], [0.5], applied=both)).compare(A, B, "same").better


def test_a_job_that_fails_by_itself_on_the_way_decides_nothing() -> None:
    job = _Job([1.0], [0.97])
    judge = _judge(job)
    run = judge.trials._run
    judge.trials._run = lambda s: run(s) if s else Outcome(ending="crashed", why="node lost")
    found = judge.compare(A, B, "same")
    assert found.fate == "undecided"
    assert "node lost" in found.why
    assert found.speed is not None


def test_steps_of_another_size_are_compared_by_their_work() -> None:
    job = _Job([1.0], [1.5], work=200.0)
    trials = Trials(job, budget_s=1e6)
    plain = trials._run
    trials._run = lambda s: plain(s) if s else _with_work(plain(s), 100.0)
    trials.run(A)
    found = Judge(trials).compare(A, B, "same")
    assert found.better
    assert found.speed is not None
    assert found.speed.ratio == pytest.approx(2 / 1.5)


@pytest.mark.parametrize(("packed", "ratio"), [(True, 1.06 * 1.3), (False, 1.3)])
def test_six_percent_more_tokens_count_where_rows_are_packed_and_vary_where_they_are_not(
    packed: bool, ratio: float
) -> None:
    job = _Job([1.3], [1.0], work=106.0, packed=packed)
    trials = Trials(job, budget_s=1e6)
    plain = trials._run
    trials._run = lambda s: plain(s) if s else msgspec.structs.replace(
        plain(s), work=100.0, packed=packed
    )  # fmt: skip
    trials.run(A)
    found = Judge(trials).compare(A, B, "same")
    assert found.speed is not None
    assert found.speed.ratio == pytest.approx(ratio)


def _with_work(outcome: Outcome, work: float) -> Outcome:
    return msgspec.structs.replace(outcome, work=work)
