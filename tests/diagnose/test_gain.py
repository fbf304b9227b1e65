"""What a cure is worth, as a range."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.diagnose.causes import CAUSES
from brim.diagnose.gain import SURE, gain

SHARES = st.floats(0, 1)


@given(st.sampled_from(sorted(CAUSES)), SHARES, st.none() | SHARES)
def test_a_gain_is_a_range_of_speed_ups_that_never_slows_down(
    cause: str, share: float, stays: float | None
) -> None:
    low, high = gain(cause, share, stays)
    assert 1 <= low <= high < float("inf")


def test_the_public_pair_lies_in_its_range() -> None:
    """A loader took 33.4 % of the time; its cure made the job 1.26 times as fast."""
    low, high = gain("input.workers", 0.334)
    assert low < 1.26 < high
    assert high == pytest.approx(1.50, abs=0.01)


@pytest.mark.parametrize(("stays", "high"), [(None, 2.0), (0.0, 2.0), (0.5, 1 / 0.75), (1.0, 1.0)])
def test_what_stays_after_the_cure_is_not_promised(stays: float | None, high: float) -> None:
    assert gain("input.workers", 0.5, stays)[1] == pytest.approx(high)


def test_what_stops_the_thread_itself_comes_back_nearly_whole() -> None:
    assert gain("host.gc", 0.5)[0] > gain("input.workers", 0.5)[0]
    assert set(SURE) <= set(CAUSES)


@given(st.sampled_from(sorted(CAUSES)), SHARES, SHARES)
def test_a_larger_share_is_worth_more(cause: str, a: float, b: float) -> None:
    small, large = sorted((a, b))
    assert gain(cause, small)[1] <= gain(cause, large)[1]
