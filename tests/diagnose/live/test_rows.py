"""Rows of steps: every row sums to its step, and hooks' times keep their step."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from tests.diagnose.live import records

from brim.diagnose.live.clues import Clue
from brim.diagnose.live.rows import MAX_STEPS, step_rows
from brim.diagnose.trace.tables import StepRow

INPUT = Clue(cause="input.workers", seconds=1.0, evidence=())
START = Clue(cause="input.startup", seconds=9.0, evidence=(), once=True)


def _rows(lines: list[Any], *clues: Clue, others: int = 0) -> list[dict[str, Any]]:
    evidence = records.evidence(lines)
    return step_rows([(evidence, clues)] * (1 + others))  # type: ignore[return-value]


def _half_unknown(**fields: Any) -> list[Any]:
    """Ten steps of 100 ms, half of what is between the hooks computing and half not known."""
    return records.steps(10, samples=records.seen(("1", 0.02), ("3", 0.02)), **fields)


def test_a_row_has_every_field_of_a_trace_s_row_and_sums_to_its_step() -> None:
    for row in _rows(_half_unknown(input_wait=0.03, gc=0.01, save=0.02), INPUT):
        whole = msgspec.convert({k: v for k, v in row.items() if k != "input_us"}, StepRow)
        assert whole.wall_us == pytest.approx(100e3)
        parts = (whole.compute_us, whole.exposed_comm_us, whole.exposed_copy_us, whole.idle_us)
        assert math.fsum(parts) == pytest.approx(whole.wall_us)
        assert math.fsum(whole.idle_by_cause.values()) == pytest.approx(whole.idle_us)


def test_what_hooks_timed_is_exact_and_the_rest_is_split_by_the_window() -> None:
    row = _rows(_half_unknown(input_wait=0.03, gc=0.01, save=0.02), INPUT)[0]
    assert row["idle_by_cause"] == pytest.approx(
        {"input.workers": 30e3, "host.periodic": 20e3, "unknown": 20e3, "host.gc": 10e3}
    )
    assert row["compute_us"] == pytest.approx(20e3)
    assert row["input_us"] == pytest.approx(30e3)


def test_a_wait_that_no_rule_explains_is_unknown_and_a_start_up_explains_no_later_step() -> None:
    row = _rows(records.steps(10, input_wait=0.04, samples=records.seen(("1", 0.02))), START)[0]
    assert row["idle_by_cause"] == pytest.approx({"unknown": 40e3})


def test_times_that_overlap_never_exceed_the_step() -> None:
    row = _rows(records.steps(10, evaluation=0.09, gc=0.03, samples=records.seen(("1", 0.1))))[0]
    assert row["idle_us"] == pytest.approx(100e3)
    assert row["compute_us"] == pytest.approx(0.0)
    assert row["idle_by_cause"]["host.periodic"] == pytest.approx(75e3)


def test_waiting_for_other_ranks_stands_in_a_row_of_its_own_only_where_there_are_others() -> None:
    lines = _half_unknown(cpu=0.06, backward=0.05, run_delay=0.0)
    alone, several = _rows(lines)[0], _rows(lines, others=1)[0]
    assert alone["exposed_comm_us"] == 0.0
    assert several["exposed_comm_us"] == pytest.approx(40e3)
    assert several["compute_us"] == pytest.approx(30e3)


def test_steps_follow_each_other_and_a_long_run_is_cut() -> None:
    rows = _rows(records.steps(MAX_STEPS + 50))
    assert len(rows) == MAX_STEPS
    assert [r["start_us"] for r in rows[:3]] == pytest.approx([0.0, 100e3, 200e3])
