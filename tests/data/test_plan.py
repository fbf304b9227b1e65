"""The plan: the same for any number of ranks, the same after a resume, balanced, complete."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.sets import llava_plan, samples_of

from brim.data.plan import Plan, deal
from brim.data.stats import summarize
from brim.errors import ConfigError


def shown(plan: Plan, epoch: int) -> Counter[int]:
    first = plan.steps(epoch)
    tasks = [t for s in range(plan.steps_in(epoch)) for t in plan.step(first + s)]
    return Counter(sample for task in tasks for sample in task.samples)


small = st.lists(st.integers(1, 100), min_size=1, max_size=120)


@settings(max_examples=50)
@given(small, st.sampled_from([1, 3, 8, 16]), st.integers(0, 3))
def test_an_epoch_shows_every_sample_and_repeats_only_to_fill_its_last_step(
    lengths: list[int], rows_per_step: int, epoch: int
) -> None:
    plan = Plan(samples_of(np.array(lengths)), [1.0], 100, rows_per_step, 5)
    counts = shown(plan, epoch)
    assert counts.keys() == set(range(len(lengths)))
    rows = plan.steps_in(epoch) * rows_per_step
    assert rows - plan.epoch(epoch).repeated == len(plan.epoch(epoch).rows)
    assert plan.epoch(epoch).repeated < rows_per_step


@pytest.mark.parametrize("world", [1, 2, 4, 8])
def test_steps_hold_the_same_rows_on_1_2_4_and_8_ranks(world: int) -> None:
    plan = llava_plan(3000)
    for step in (0, 7, plan.steps(1), plan.steps(1) + 3):
        whole = plan.step(step)
        shared = [task for rank in range(world) for task in plan.rows(step, rank, world)]
        assert sorted(shared, key=lambda t: t.number) == whole
        assert [t.number for t in whole] == list(range(8))


def test_ranks_that_do_not_divide_the_rows_of_a_step_are_named() -> None:
    with pytest.raises(ConfigError, match="rows_per_step is 8, which 3 ranks cannot share"):
        llava_plan(200).rows(0, 0, 3)


def test_a_plan_is_a_function_of_its_seed_and_epoch() -> None:
    one, again, other = llava_plan(2000), llava_plan(2000), llava_plan(2000, seed=1)
    for step in range(20):
        assert one.step(step) == again.step(step)
    assert one.step(0) != other.step(0)
    assert [t.samples for t in one.step(0)] != [t.samples for t in one.step(one.steps(1))]


def test_any_step_can_be_asked_for_first() -> None:
    walked, jumped = llava_plan(2000), llava_plan(2000)
    target = walked.steps(2) + 5
    for step in range(target):
        walked.step(step)
    assert jumped.step(target) == walked.step(target)
    assert jumped.locate(target) == (2, 5)


def test_known_starts_of_epochs_spare_their_planning() -> None:
    plan = llava_plan(2000)
    target = plan.steps(3) + 1
    resumed = llava_plan(2000)
    resumed.starts = list(plan.starts)
    assert resumed.step(target) == plan.step(target)
    assert set(resumed._epochs) == {3}


def test_weights_say_how_often_a_source_is_shown() -> None:
    samples = samples_of(np.full(1000, 10))
    samples.source[400:] = 1
    plan = Plan(samples, [2.0, 0.5], 100, 1, 0)
    first, second = shown(plan, 0), shown(plan, 1)
    for counts in (first, second):
        assert all(counts[k] == 2 for k in range(400))
        assert sum(counts[k] for k in range(400, 1000)) == 300
        assert max(counts[k] for k in range(400, 1000)) == 1
    assert first != second  # the half that is shown is drawn anew


@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=8), st.sampled_from([1, 2, 4, 8]))
def test_dealing_gives_each_rank_as_many_rows_and_each_row_to_one_rank(
    costs: list[float], world: int
) -> None:
    cost = np.array(costs * world)
    shares = deal(cost, world)
    assert {len(share) for share in shares} == {len(costs)}
    assert sorted(row for share in shares for row in share) == list(range(len(cost)))


def test_ranks_wait_for_each_other_under_1_percent_where_chance_costs_over_10() -> None:
    summary = summarize(llava_plan(40_000), [2, 4, 8])
    assert summary.waste < 0.005
    assert summary.padded_waste > 0.3
    for line in summary.imbalance:
        assert line.step < 0.01
        assert line.micro_step < 0.01
    at_8 = summary.imbalance[-1]
    assert at_8.random_samples > 0.1
    assert at_8.random_packed > 10 * at_8.step


@pytest.mark.parametrize(("rows", "world"), [(16, 16), (64, 64), (128, 64), (96, 96)])
def test_up_to_96_ranks_wait_under_3_percent_where_chance_costs_over_20(
    rows: int, world: int
) -> None:
    [line] = summarize(llava_plan(40_000, rows_per_step=rows), [world]).imbalance
    assert max(line.step, line.micro_step) < 0.03
    assert line.random_samples > 0.2
    assert line.random_packed > 0.1


def test_the_tower_runs_where_any_rank_has_pictures_and_in_the_first_and_last_row() -> None:
    patches = np.zeros(64, np.int64)
    patches[:8] = 400
    plan = Plan(samples_of(np.full(64, 100), patches), [1.0], 100, 8, 0)
    for step in range(8):
        found = plan.tower(step, 2)
        for turn, runs in enumerate(found):
            rows = [plan.rows(step, rank, 2)[turn] for rank in (0, 1)]
            pictures = any(patches[s] for row in rows for s in row.samples)
            assert runs == (pictures or turn in (0, 3))
    assert not all(runs for step in range(8) for runs in plan.tower(step, 2))
    assert plan.tower(0, 2, always=True) == [True] * 4
    assert plan.tower(0, 8) == [True]


def test_data_without_pictures_never_runs_the_tower() -> None:
    plan = Plan(samples_of(np.full(64, 100)), [1.0], 100, 8, 0)
    assert plan.tower(3, 2, always=True) == [False] * 4


def test_neighbouring_steps_are_not_sorted_by_cost() -> None:
    plan = llava_plan(40_000)
    epoch = plan.epoch(0)
    means = epoch.cost[epoch.order].reshape(-1, 8).mean(axis=1)[:-1]
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.15


def test_the_summary_counts_what_the_rows_hold() -> None:
    plan = llava_plan(3000)
    summary = summarize(plan, [8])
    assert summary.tokens == plan.samples.length.sum()
    assert summary.patches == plan.samples.patches.sum()
    assert sum(bar.count for bar in summary.histogram) == summary.samples == 3000
    assert summary.steps == -(-summary.rows // 8)
    assert summary.lengths[0] == plan.samples.length.min()
    assert summary.lengths[-1] == plan.samples.length.max()
    assert summarize(plan, [3]).imbalance == ()


def test_a_plan_of_one_sample_works() -> None:
    plan = Plan(samples_of(np.array([7])), [1.0], 100, 4, 0)
    assert [task.samples for task in plan.step(0)] == [(0,)] * 4
    assert summarize(plan, [1, 2, 4]).repeated_rows == 3


def test_each_row_has_its_own_salt_for_replacements() -> None:
    plan = llava_plan(3000)
    salts = [task.salt for step in range(10) for task in plan.step(step)]
    assert len(set(salts)) == len(salts)
