"""Which steps count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnose.live.records import process, steps

from brim.diagnose.live.window import choose, describe
from brim.record.steps import Step


def _of(*walls: float) -> list[Step]:
    lines, t = [], 0.0
    for n, wall in enumerate(walls):
        t += wall
        lines.append(Step(n=n, t=t, wall=wall, clock="opt0"))
    return lines


@pytest.mark.parametrize("slow", [1, 2, 3, 5, 8])
def test_slow_first_steps_are_warm_up(slow: int) -> None:
    chosen = choose(process(_of(*[3.0] * slow, *[0.1] * 30)))
    assert len(chosen.before) == slow
    assert chosen.wall == pytest.approx(3.0)
    assert f"begins after {slow} of {slow + 30}" in chosen.why


def test_a_long_step_every_ten_is_part_of_the_steady_state() -> None:
    chosen = choose(process(_of(*([0.1] * 9 + [2.0]) * 4)))
    assert sum(s.wall > 1 for s in chosen.steps) == 4
    assert len(chosen.before) == 1


def test_a_job_that_never_becomes_steady_is_measured_from_its_middle_on() -> None:
    chosen = choose(process(_of(*[0.1 * 1.5**n for n in range(20)])))
    assert len(chosen.before) == 10


@pytest.mark.parametrize(("number", "before"), [(3, 1), (7, 1)])
def test_of_a_handful_of_steps_only_the_first_is_left_out(number: int, before: int) -> None:
    chosen = choose(process(steps(number)))
    assert (len(chosen.before), len(chosen.steps)) == (before, number - before)


@pytest.mark.parametrize(("warmup", "before"), [(0, 0), (4, 4), (500, 19)])
def test_a_warm_up_that_was_asked_for_is_kept_and_never_takes_all_steps(
    warmup: int, before: int
) -> None:
    chosen = choose(process(steps(20)), warmup=warmup)
    assert len(chosen.before) == before
    assert chosen.steps
    assert "as asked" in chosen.why


def test_steps_that_brim_disturbed_do_not_count_and_probes_are_kept_apart() -> None:
    lines = steps(20)
    lines[10].profiled = 1
    lines[12].probe = lines[13].probe = 1
    chosen = choose(process(lines), warmup=2)
    assert [s.n for s in chosen.probed] == [12, 13]
    assert not {10, 12, 13} & {s.n for s in chosen.steps}
    assert len(chosen.steps) == 15


def test_brims_own_counting_is_no_time_of_the_job() -> None:
    assert choose(process(steps(10, own=0.02)), warmup=0).wall == pytest.approx(10 * 0.08)


def test_the_reason_says_when_no_optimizer_was_seen() -> None:
    lines = steps(10)
    for line in lines:
        line.clock = "loader"
    assert "no optimizer step was seen" in choose(process(lines)).why
    for line in lines:
        line.clock = "time"
    chosen = choose(process(lines))
    assert len(chosen.steps) == 1
    assert "the whole process is measured" in chosen.why


def test_a_process_without_a_line_has_no_steps() -> None:
    chosen = choose(process([]))
    assert (chosen.steps, chosen.wall) == ([], 0)


@given(st.lists(st.floats(1e-4, 100), min_size=3, max_size=60), st.none() | st.integers(0, 80))
def test_each_step_is_warm_up_or_measured_and_at_least_one_is_measured(
    walls: list[float], warmup: int | None
) -> None:
    chosen = choose(process(_of(*walls)), warmup=warmup)
    assert [s.n for s in chosen.before + chosen.steps] == list(range(len(walls)))
    assert chosen.steps


def test_the_clause_about_the_steps_gives_number_median_and_middle_half() -> None:
    text = describe(choose(process(_of(*[0.1] * 10, *[0.2] * 10)), warmup=0))
    assert text == "20 steps of 150 ms (middle half 100 ms – 200 ms)"
    assert describe(choose(process(steps(3)), warmup=2)) == "1 step"
