"""The figures of ``brim plan`` against the same counted the slow way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.sets import llava_plan, samples_of

from brim.data.plan import Plan
from brim.data.stats import QUANTILES, Summary, summarize


def test_each_figure_is_what_the_rows_hold() -> None:
    plan = llava_plan(3000, rows_per_step=8)
    found = summarize(plan, [2, 4])
    samples, rows = plan.samples, plan.epoch(0).rows
    ids = [int(i) for r in range(len(rows)) for i in rows.row(r)]
    assert found.samples == len(ids) == 3000
    assert found.tokens == sum(int(samples.length[i]) for i in ids)
    assert found.images == sum(int(samples.images[i]) for i in ids)
    assert found.patches == sum(int(samples.patches[i]) for i in ids)
    assert found.visual_tokens * 4 == found.patches
    assert found.scored_tokens == sum(int(samples.scored[i]) for i in ids)
    assert found.waste == pytest.approx(1 - found.tokens / (8192 * found.rows))
    assert found.rows + found.repeated_rows == 8 * found.steps
    per_row = [sum(int(samples.patches[i]) for i in rows.row(r)) for r in range(len(rows))]
    assert found.row_patches == tuple(int(v) for v in np.quantile(per_row, QUANTILES))
    assert found.lengths[0] == samples.length.min() and found.lengths[-1] == samples.length.max()


def waiting(plan: Plan, world: int, micro: bool) -> float:
    """Σ of the slowest rank over Σ of the mean, minus 1, step by step and row by row."""
    slowest = mean = 0.0
    costs = plan.epoch(0).cost[plan.epoch(0).order].reshape(-1, plan.rows_per_step)
    for step in range(plan.steps_in(0)):
        shares = [[costs[step][place] for place in rank] for rank in plan.share(step, world)]
        meetings = list(zip(*shares, strict=True)) if micro else [[sum(s) for s in shares]]
        for meeting in meetings:
            slowest, mean = slowest + max(meeting), mean + sum(meeting) / world
    return slowest / mean - 1


@pytest.mark.parametrize("world", [2, 8])
def test_waiting_is_that_of_the_slowest_rank_at_each_meeting(world: int) -> None:
    plan = llava_plan(2500, rows_per_step=16)
    [line] = summarize(plan, [world]).imbalance
    assert line.world == world
    assert line.step == pytest.approx(waiting(plan, world, micro=False), abs=1e-12)
    assert line.micro_step == pytest.approx(waiting(plan, world, micro=True), abs=1e-12)
    # each stage of planning helps
    assert line.step <= line.micro_step < line.random_packed < line.random_samples


def test_ranks_that_do_not_divide_a_step_are_left_out() -> None:
    found = summarize(llava_plan(500, rows_per_step=8), [2, 3, 5, 8])
    assert [line.world for line in found.imbalance] == [2, 8]


def test_padded_batches_waste_what_their_longest_makes_them() -> None:
    lengths = np.array([100] * 7 + [800])
    found = summarize(Plan(samples_of(lengths), [1.0], 1600, 1, 0), [1])
    assert found.padded_waste == pytest.approx(1 - 1500 / 6400)
    assert found.waste == pytest.approx(1 - 1500 / 1600)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9000), min_size=1, max_size=60))
def test_the_bars_hold_every_sample_once_between_round_borders(lengths: list[int]) -> None:
    found: Summary = summarize(Plan(samples_of(np.array(lengths)), [1.0], 9000, 1, 0), [])
    bars = found.histogram
    assert sum(bar.count for bar in bars) == len(lengths)
    assert len(bars) <= 13
    for bar in bars:
        inside = sum(bar.low <= length < bar.high for length in lengths)
        # the last border belongs to the last bar
        assert bar.count == inside + (bar is bars[-1]) * lengths.count(bar.high)
