"""The figures behind the page's pictures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report import example_tables, examples

from brim.record.findings import Diagnosis, Entry, Window
from brim.report import views
from brim.report.tables import Step, read_tables


def _account(shares: list[float]) -> Diagnosis:
    total = sum(shares)
    causes = ["compute", "input.decode", "host.sync", "comm.exposed", "unknown"]
    parts = ["useful", "idle", "idle", "busy-not-computing", "unknown"]
    return Diagnosis(
        window=Window(steps=1, wall_s=1.0, ranks=1),
        account=[
            Entry(part=part, cause=cause, share=share / total)  # type: ignore[arg-type]
            for part, cause, share in zip(parts, causes, shares, strict=True)
        ],
        findings=[],
    )


@given(st.lists(st.floats(0.01, 1), min_size=5, max_size=5))
def test_a_waterfall_falls_from_100_percent_to_what_is_useful_without_a_gap(
    shares: list[float],
) -> None:
    rows = views.waterfall(_account(shares))
    assert (rows[0].bar.x, rows[0].bar.width) == ("0.000", "100.000")
    top = 100.0
    for row in rows[1:-1]:
        assert float(row.bar.x) + float(row.bar.width) == pytest.approx(top, abs=0.01)
        top = float(row.bar.x)
        assert row.edge == row.bar.x
    assert rows[-1].part == "busy"
    assert float(rows[-1].bar.x) == 0
    assert float(rows[-1].bar.width) == pytest.approx(top, abs=0.01)


def test_the_largest_loss_falls_first() -> None:
    assert [row.name for row in views.waterfall(examples.input_bound())] == [
        "the measured time",
        "input.workers",
        "host.sync",
        "not to be told apart",
        "transfer.pageable",
        "the device computes",
    ]


def test_with_flops_the_whole_is_what_the_device_could_compute() -> None:
    rows = views.waterfall(examples.healthy())
    assert rows[0].name == "all that the device could compute"
    assert rows[-1].name == "the model's own FLOPs"


def test_a_stack_is_contiguous_and_leaves_out_what_is_zero() -> None:
    bars = views.stack({"compute": 0.5, "comm": 0.0, "input.decode": 0.3, "unknown": 0.2})
    assert [(b.x, b.width, b.accent) for b in bars] == [
        ("0.000", "50.000", "useful"),
        ("50.000", "30.000", "input"),
        ("80.000", "20.000", "unknown"),
    ]


def test_a_kernel_shows_flops_when_known_else_bytes_else_nothing() -> None:
    rows = views.kernels(example_tables.kernels())
    assert [row.cells[5] for row in rows] == [
        "690 TFLOP/s", "21 GB/s", "170 TFLOP/s", "2.4 TB/s", "2.9 TB/s",
    ]  # fmt: skip
    assert [row.cells[6] for row in rows] == ["70 %", "–", "17 %", "72 %", "87 %"]
    assert rows[0].bars[0].width == "100.000"


def test_a_rank_without_peers_shows_a_dash_not_a_zero() -> None:
    import msgspec

    row = msgspec.structs.replace(
        example_tables.ranks()[0], comm_wait_us=None, late_us=None, late_calls=None, late_cause=""
    )
    (line,) = views.ranks([row])
    assert line.cells[1:] == ["–", "–", "–", "–"]


def test_the_rank_that_others_waited_for_has_the_full_bar() -> None:
    widths = [line.late.width for line in views.ranks(example_tables.ranks()) if line.late]
    assert widths[5] == "100.000"
    assert all(float(w) < 2 for i, w in enumerate(widths) if i != 5)


def test_a_step_plot_of_ranks_is_their_mean() -> None:
    steps = [
        Step(rank=rank, name=f"s{i}", wall_us=100.0 + 20 * rank + i, idle_us=10.0 * rank)
        for rank in (0, 1)
        for i in range(3)
    ]
    plot = views.step_plot(steps)
    assert plot is not None
    assert plot.caption == "3 steps, mean of 2 ranks"
    assert plot.median == "111 µs"
    assert [c.title for c in plot.columns] == ["s0: 110 µs", "s1: 111 µs", "s2: 112 µs"]


def test_1000_steps_are_drawn_in_groups_of_7() -> None:
    plot = views.step_plot([Step(name=str(i), wall_us=1000.0) for i in range(1000)])
    assert plot is not None
    assert len(plot.columns) == 143
    assert plot.caption.endswith("each column is 7 steps")


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_2_steps_make_no_plot(n: int) -> None:
    assert views.step_plot([Step(wall_us=1.0)] * n) is None


def test_the_pieces_of_a_column_fill_the_step() -> None:
    plot = views.step_plot(read_tables(examples.comm_bound()).steps)
    assert plot is not None and plot.split
    last = plot.columns[-1]
    assert sum(float(height) for _, height, _ in last.pieces) == pytest.approx(100, abs=0.5)
    assert float(last.pieces[-1][0]) == pytest.approx(0, abs=0.5)


def test_frameworks_come_with_the_jobs_own_first_and_only_known_ones() -> None:
    known = views.frameworks(examples.input_bound())
    assert known[:2] == [("hf-trainer", "HF Trainer"), ("torch", "PyTorch")]
    assert ("accelerate", "Accelerate") not in known


def test_a_live_run_shows_its_wait_for_input_on_top_of_the_rest() -> None:
    steps = [Step(name=str(i), wall_us=100.0, input_us=25.0 * i) for i in range(3)]
    plot = views.step_plot(steps)
    assert plot is not None and plot.split
    assert [[p[1:] for p in c.pieces] for c in plot.columns] == [
        [("100.000", "total")],
        [("75.000", "total"), ("25.000", "input")],
        [("50.000", "total"), ("50.000", "input")],
    ]
    assert views.step_legend(steps) == [("total", "all but input"), ("input", "input")]


def test_classes_of_kernels_below_a_tenth_of_a_percent_are_not_listed() -> None:
    import msgspec

    rows = example_tables.kernel_kinds()
    rows.append(msgspec.structs.replace(rows[0], kind="index", share=0.0009))
    assert views.kinds(rows) == [
        ("matmul", "37.1 %"), ("comm", "33.1 %"), ("attention", "9.4 %"),
        ("elementwise", "6.1 %"), ("norm", "2.2 %"),
    ]  # fmt: skip
