"""The timeline's data for the page's script."""

from __future__ import annotations

import itertools
from typing import Literal

from hypothesis import given
from hypothesis import strategies as st
from tests.report import example_tables, examples

from brim.diagnose.trace.tables import Segment
from brim.report.tables import read_tables
from brim.report.timeline import MAX_RANKS, timeline


def test_nothing_to_draw_is_none() -> None:
    assert timeline([], []) is None


def test_each_piece_keeps_its_time_cause_and_name() -> None:
    segments = [
        Segment(rank=2, lane="idle", start_us=5.0, end_us=9.5, label="input.decode"),
        Segment(rank=2, lane="device", start_us=0.0, end_us=5.0, label="compute", name="gemm"),
        Segment(rank=2, lane="host", start_us=4.0, end_us=9.0, label="sync", name=".item()"),
    ]
    data = timeline(segments, [])
    assert data is not None
    texts, (lane,) = data["texts"], data["lanes"]
    assert (data["start"], data["end"], lane["rank"]) == (0.0, 9.5, 2)

    def named(row: list[float]) -> tuple[object, ...]:
        return (*row[:2], *(texts[int(i)] for i in row[2:]))

    assert [named(row) for row in lane["device"]] == [
        (0.0, 5.0, "useful", "compute", "gemm"),
    ]
    assert [named(row) for row in lane["idle"]] == [(5.0, 9.5, "input", "input.decode", "")]
    assert [named(row) for row in lane["host"]] == [(4.0, 9.0, "host", "sync", ".item()")]


_spans = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20), st.sampled_from(["device", "idle", "host"])),
    max_size=25,
)


@given(_spans)
def test_pieces_of_a_lane_become_disjoint_and_cover_what_they_covered(
    spans: list[tuple[int, int, Literal["device", "idle", "host"]]],
) -> None:
    segments = [
        Segment(rank=0, lane=lane, start_us=float(a), end_us=float(a + n), label=lane)
        for a, n, lane in spans
    ]
    data = timeline(segments, [])
    if data is None:
        assert not spans
        return
    (lane,) = data["lanes"]
    for which in ("device", "idle", "host"):
        rows = lane[which]
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(rows))
        covered = {t for row in rows for t in range(int(row[0]), int(row[1]))}
        assert covered == {t for a, n, of in spans if of == which for t in range(a, a + n)}


def test_rows_of_a_lane_are_in_order_of_time_whatever_the_tables_order() -> None:
    shuffled = sorted(example_tables.timeline(), key=lambda s: (s.end_us * 7919) % 101)
    data = timeline(shuffled, [])
    assert data is not None
    for lane in data["lanes"]:
        for rows in (lane["device"], lane["idle"], lane["host"]):
            assert [row[0] for row in rows] == sorted(row[0] for row in rows)


def test_a_text_is_stored_once_and_cleaned() -> None:
    data = timeline(read_tables(examples.hostile()).timeline, [])
    assert data is not None
    assert len(data["texts"]) == len(set(data["texts"])) <= 12
    assert not any("\x1b" in text or "\u202e" in text for text in data["texts"])


def test_step_marks_are_the_first_ranks_inside_the_drawn_range() -> None:
    tables = read_tables(examples.comm_bound())
    data = timeline(tables.timeline, tables.steps)
    assert data is not None
    assert data["steps"] == [
        [0.0, "ProfilerStep#6"], [412_000.0, "ProfilerStep#7"], [824_000.0, "ProfilerStep#8"]
    ]  # fmt: skip


def test_of_200_ranks_16_are_drawn() -> None:
    segments = [
        Segment(rank=r, lane="device", start_us=0.0, end_us=1.0, label="compute")
        for r in range(200)
    ]
    data = timeline(segments, [])
    assert data is not None
    assert len(data["lanes"]) == MAX_RANKS == 16
