"""Interval algebra against sets of integers."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brim.diagnose.trace.timeline import Spans, union, unite

intervals = st.lists(
    st.tuples(st.integers(0, 60), st.integers(0, 12)).map(lambda p: (p[0], p[0] + p[1])),
    max_size=12,
)


def spans(pairs: list[tuple[int, int]]) -> Spans:
    return union(
        np.array([a for a, _ in pairs], np.int64), np.array([b for _, b in pairs], np.int64)
    )


def moments(pairs: list[tuple[int, int]]) -> set[int]:
    return {t for a, b in pairs for t in range(a, b)}


def held(s: Spans) -> set[int]:
    found = [t for a, b in zip(s.start.tolist(), s.end.tolist(), strict=True) for t in range(a, b)]
    assert len(found) == len(set(found)), "intervals overlap"
    assert (s.start[1:] > s.end[:-1]).all(), "neighbours touch or are out of order"
    return set(found)


@given(intervals)
def test_a_union_holds_each_moment_once(pairs: list[tuple[int, int]]) -> None:
    assert held(spans(pairs)) == moments(pairs)
    assert spans(pairs).total == len(moments(pairs))


@given(intervals, intervals)
def test_or_and_minus_are_those_of_sets(a: list[tuple[int, int]], b: list[tuple[int, int]]) -> None:
    one, other = spans(a), spans(b)
    assert held(one | other) == moments(a) | moments(b)
    assert held(one & other) == moments(a) & moments(b)
    assert held(one - other) == moments(a) - moments(b)
    assert held(unite([one, other, Spans()])) == moments(a) | moments(b)


@given(intervals, st.integers(-5, 80), st.integers(-5, 80))
def test_a_window_cuts_and_its_gaps_fill_it(
    pairs: list[tuple[int, int]], low: int, high: int
) -> None:
    s, inside = spans(pairs), {t for t in moments(pairs) if low <= t < high}
    assert held(s.within(low, high)) == inside
    if low <= high:
        assert held(s.gaps(low, high)) == set(range(low, high)) - inside


@given(intervals, st.lists(st.tuples(st.integers(-5, 80), st.integers(-5, 80)), min_size=1))
def test_overlaps_and_membership_are_counted(
    pairs: list[tuple[int, int]], queries: list[tuple[int, int]]
) -> None:
    s, truth = spans(pairs), moments(pairs)
    start = np.array([a for a, _ in queries], np.int64)
    end = np.array([b for _, b in queries], np.int64)
    assert s.overlap(start, end).tolist() == [
        sum(1 for t in truth if a <= t < b) for a, b in queries
    ]
    assert s.contains(start).tolist() == [a in truth for a, _ in queries]


@given(intervals, st.integers(0, 15))
def test_short_intervals_are_all_those_of_at_most_the_limit(
    pairs: list[tuple[int, int]], limit: int
) -> None:
    s = spans(pairs)
    kept = s.shorter_than(limit)
    assert sorted(kept.lengths.tolist()) == sorted(n for n in s.lengths.tolist() if n <= limit)
    assert held(kept) <= held(s)
