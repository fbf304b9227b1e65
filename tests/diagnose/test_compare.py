"""Two diagnoses side by side: the arithmetic, the noise, and what limits the comparison."""

from __future__ import annotations

import math
import random
import statistics
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report import examples

from brim.diagnose.compare import (
    Comparison,
    beyond_noise,
    bootstrap,
    compare,
    step_times,
    worse_by,
)
from brim.record.findings import Diagnosis, Entry, Window


def _run(
    shares: dict[str, float],
    *,
    steps: list[float] | None = None,
    metrics: dict[str, float] | None = None,
    **details: Any,
) -> Diagnosis:
    """``shares``: of causes; what is left is computing.  ``steps`` in seconds."""
    rows = [{"rank": 0, "wall_us": s * 1e6} for s in steps or []]
    idle = [Entry(part="idle", cause=c, share=s) for c, s in shares.items()]
    rest = 1 - sum(shares.values())
    return Diagnosis(
        window=Window(steps=10, wall_s=1.0, ranks=1),
        account=[Entry(part="useful", cause="compute", share=rest), *idle],
        findings=[],
        metrics=metrics or {},
        details={"steps": rows, **details} if rows else details,
    )


def _noisy(n: int, mean: float, noise: float, seed: int) -> list[float]:
    rng = random.Random(seed)
    return [mean * rng.gauss(1, noise) for _ in range(n)]


def test_a_run_against_itself_has_not_changed() -> None:
    run = examples.input_bound()
    same = compare(run, run)
    assert same.speed is not None
    assert same.speed.ratio == 1.0
    assert beyond_noise(same.speed) is False
    assert worse_by(same) == 0.0
    assert all(c.step_a_s == c.step_b_s and c.share_a == c.share_b for c in same.causes)


def test_changes_by_cause_sum_to_the_change_of_the_mean_step() -> None:
    result = compare(examples.input_bound(), examples.input_cured())
    assert result.a.spread and result.b.spread
    difference = math.fsum((c.step_b_s or 0) - (c.step_a_s or 0) for c in result.causes)
    assert difference == pytest.approx(result.b.spread.mean_s - result.a.spread.mean_s, abs=1e-12)
    assert result.causes[0].cause == "input.workers"  # largest change first


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 0.15), max_size=6),
    st.dictionaries(st.sampled_from("abcdef"), st.floats(0, 0.15), max_size=6),
    st.floats(0.001, 10),
    st.floats(0.001, 10),
)
def test_any_two_accounts_are_compared_without_a_rest(
    a: dict[str, float], b: dict[str, float], step_a: float, step_b: float
) -> None:
    result = compare(_run(a, metrics={"step_s": step_a}), _run(b, metrics={"step_s": step_b}))
    assert math.fsum(c.share_a for c in result.causes) == pytest.approx(1)
    assert math.fsum(c.share_b for c in result.causes) == pytest.approx(1)
    assert math.fsum(c.step_b_s or 0 for c in result.causes) == pytest.approx(step_b)
    back = compare(_run(b, metrics={"step_s": step_b}), _run(a, metrics={"step_s": step_a}))
    assert result.speed and back.speed
    assert result.speed.ratio * back.speed.ratio == pytest.approx(1)


def test_the_interval_of_a_true_10_percent_leaves_out_1_and_holds_the_truth() -> None:
    a, b = _noisy(50, 0.110, 0.03, seed=3), _noisy(50, 0.100, 0.03, seed=4)
    speed = compare(_run({}, steps=a), _run({}, steps=b)).speed
    assert speed and speed.low and speed.high
    assert 1.0 < speed.low < 1.10 < speed.high < 1.2
    assert beyond_noise(speed) is True
    assert speed.ratio == pytest.approx(statistics.fmean(a) / statistics.fmean(b))


def test_in_200_pairs_without_a_difference_about_1_in_20_is_called_one() -> None:
    called = 0
    for seed in range(200):
        a = np.array(_noisy(30, 1.0, 0.05, seed=seed))
        b = np.array(_noisy(30, 1.0, 0.05, seed=10_000 + seed))
        low, high = bootstrap(a, b)
        called += not low <= 1 <= high
    assert called <= 20, f"{called} of 200; 10 expected at 95 %"


def test_20000_steps_take_less_than_the_memory_of_all_resamples_at_once() -> None:
    tracemalloc.start()
    low, high = bootstrap(np.linspace(1, 2, 20_000), np.linspace(1, 2, 20_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert low < 1 < high
    assert peak < 2000 * 20_000 * 8 / 2


def test_4_steps_a_side_give_no_interval_and_a_note() -> None:
    result = compare(_run({}, steps=[1.0] * 4), _run({}, steps=[1.1] * 50))
    assert result.speed and result.speed.low is None
    assert beyond_noise(result.speed) is None
    assert "noise is not known: 4 and 50 single steps were recorded" in "".join(result.notes)


def test_the_same_comparison_is_the_same_bytes() -> None:
    pair = examples.input_bound(), examples.input_cured()
    assert msgspec.json.encode(compare(*pair)) == msgspec.json.encode(compare(*pair))


def test_a_comparison_survives_json() -> None:
    result = compare(examples.comm_bound(), examples.comm_cured())
    assert msgspec.json.decode(msgspec.json.encode(result), type=Comparison) == result


def test_a_step_of_twice_the_samples_in_twice_the_time_is_not_slower() -> None:
    a = _run({"host.launch": 0.4}, metrics={"step_s": 0.1, "samples_per_s": 80.0})
    b = _run({"host.launch": 0.4}, metrics={"step_s": 0.2, "samples_per_s": 80.0})
    result = compare(a, b)
    assert result.speed and result.speed.work == pytest.approx(2)
    assert result.speed.ratio == pytest.approx(1)
    assert worse_by(result) == pytest.approx(0)
    (launch,) = [c for c in result.causes if c.cause == "host.launch"]
    assert launch.step_a_s == pytest.approx(launch.step_b_s)
    assert any("2 times the work" in note for note in result.notes)


def test_token_counts_that_vary_by_5_percent_are_the_same_work() -> None:
    a = _run({}, metrics={"step_s": 0.1, "tokens_per_s": 1000.0})
    b = _run({}, metrics={"step_s": 0.1, "tokens_per_s": 1050.0})
    speed = compare(a, b).speed
    assert speed and speed.work == 1.0


@pytest.mark.parametrize(
    ("step_a", "step_b", "worse"), [(0.1, 0.11, 0.1), (0.1, 0.05, -0.5), (0.2, 0.2, 0.0)]
)
def test_worse_is_the_extra_time_for_the_same_work(
    step_a: float, step_b: float, worse: float
) -> None:
    result = compare(_run({}, metrics={"step_s": step_a}), _run({}, metrics={"step_s": step_b}))
    assert worse_by(result) == pytest.approx(worse)


def test_without_step_times_worse_is_the_largest_rise_of_a_loss() -> None:
    a = _run({"input.decode": 0.1, "host.sync": 0.3})
    b = _run({"input.decode": 0.25, "host.sync": 0.1})
    result = compare(a, b)
    assert result.speed is None
    assert worse_by(result) == pytest.approx(0.15)
    assert any("step times are not known" in note for note in result.notes)


def test_steps_of_8_ranks_are_averaged_step_by_step() -> None:
    rows = [{"rank": r, "wall_us": 1e6 * (1 + r + 10 * i)} for r in range(8) for i in range(3)]
    run = msgspec.structs.replace(_run({}), details={"steps": rows})
    assert step_times(run) == pytest.approx([4.5, 14.5, 24.5])


@pytest.mark.parametrize(
    "rows",
    [None, "text", [1, None], [{}], [{"wall_us": None}], [{"wall_us": float("nan")}],
     [{"wall_us": -1.0}], [{"wall_us": "3"}]],
)  # fmt: skip
def test_rows_that_are_no_steps_are_left_out(rows: Any) -> None:
    assert step_times(msgspec.structs.replace(_run({}), details={"steps": rows})) == []


def test_flops_on_one_side_only_fall_back_to_busy_time() -> None:
    counted, timed = examples.healthy(), examples.input_bound()
    result = compare(counted, timed)
    busy = [c for c in result.causes if c.part in ("useful", "busy-lost")]
    assert [(c.cause, round(c.share_a, 3)) for c in busy] == [("compute", 0.981)]
    assert any("FLOPs were counted on one side only" in note for note in result.notes)


def test_kernel_kinds_are_compared_per_rank_and_step() -> None:
    result = compare(examples.comm_bound(), examples.comm_cured())
    comm = result.kernels[0]
    assert comm.kind == "comm"
    assert comm.step_a_s == pytest.approx(0.331 * 0.412)
    assert comm.step_b_s == pytest.approx(0.331 * 0.412 / 2)


def test_a_kind_that_one_side_does_not_run_has_0_there() -> None:
    def kinds(*names: str) -> list[dict[str, Any]]:
        return [{"kind": n, "share": 0.1, "time_us": 1e6} for n in names]

    result = compare(_run({}, kernel_kinds=kinds("a")), _run({}, kernel_kinds=kinds("b")))
    assert {(k.kind, k.step_a_s, k.step_b_s) for k in result.kernels} == {
        ("a", 0.1, 0.0), ("b", 0.0, 0.1),
    }  # fmt: skip


def test_kernels_and_ranks_of_one_side_only_are_not_a_change() -> None:
    result = compare(examples.comm_bound(), examples.input_bound())
    assert result.kernels == []
    assert result.ranks == []
    assert any("numbers of ranks differ: 8 and 1" in note for note in result.notes)
    assert any("devices differ" in note for note in result.notes)


def test_ranks_are_matched_by_number_and_a_missing_one_is_null_not_zero() -> None:
    before, after = examples.comm_bound(), examples.comm_cured()
    after.details["ranks"] = after.details["ranks"][:7]
    result = compare(before, after)
    assert [r.rank for r in result.ranks] == list(range(8))
    assert result.ranks[5].compute == pytest.approx((0.71, 0.81))
    assert result.ranks[7].idle == (0.04, None)


def test_a_rare_long_step_counts_and_the_usual_step_is_noted() -> None:
    a = [0.1] * 45 + [2.0] * 5
    result = compare(_run({}, steps=a), _run({}, steps=[0.1] * 50))
    assert result.speed and result.speed.ratio == pytest.approx(2.9)
    assert any("by the median step it is 1.00×" in note for note in result.notes)


def test_steps_timed_under_the_profiler_are_noted() -> None:
    run = _run({}, metrics={"profiled_step_s": 0.1}, steps=[0.1] * 9)
    assert any(
        "steps of B were timed under the profiler" in n
        for n in compare(_run({}, steps=[0.1] * 9), run).notes
    )


def test_the_public_pair_with_0_and_4_workers_is_1_26_times_as_fast(shared: Path) -> None:
    from brim.cli.load import load_diagnosis

    traces = shared / "traces"
    a, b = (load_diagnosis([traces / f"tb_resnet50_v100_workers{n}"]) for n in (0, 4))
    result = compare(a, b)
    assert result.speed and result.speed.ratio == pytest.approx(1.26, abs=0.01)
    assert result.causes[0].cause == "input.main-process"
