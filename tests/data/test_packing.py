"""Every sample once, no row too long, nearly no padding, in seconds."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.data.sets import llava_lengths

from brim.data.packing import pack


@given(
    st.lists(st.integers(1, 100), min_size=1, max_size=300),
    st.integers(100, 400),
    st.sampled_from([1, 7, 64, 1 << 15]),
    st.integers(0, 5),
)
def test_every_entry_is_in_one_row_and_no_row_is_too_long(
    lengths: list[int], capacity: int, window: int, seed: int
) -> None:
    sizes = np.array(lengths, np.int64)
    order = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), 2))
    rows = pack(sizes, order, capacity, window=window)
    assert sorted(rows.samples.tolist()) == sorted(order.tolist())
    totals = rows.sums(sizes)
    assert totals.max() <= capacity
    assert totals.sum() == 2 * sizes.sum()
    assert [rows.row(r).tolist() for r in range(len(rows))] == [
        part.tolist() for part in np.split(rows.samples, rows.ends[:-1])
    ]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=200))
def test_two_rows_are_never_both_less_than_half_full(lengths: list[int]) -> None:
    sizes = np.array(lengths, np.int64)
    rows = pack(sizes, np.arange(len(sizes)), 100)
    assert (rows.sums(sizes) <= 50).sum() <= 1


@pytest.mark.parametrize("capacity", [8192, 16_384, 32_768])
def test_llava_like_lengths_waste_less_than_half_a_percent(capacity: int) -> None:
    lengths, _ = llava_lengths(50_000)
    rows = pack(lengths, np.random.default_rng(1).permutation(len(lengths)), capacity)
    assert 1 - lengths.sum() / (len(rows) * capacity) < 0.005


def test_a_window_passes_poorly_filled_rows_to_the_next() -> None:
    lengths, _ = llava_lengths(20_000)
    order = np.arange(len(lengths))
    rows = pack(lengths, order, 8192, window=500)
    assert 1 - lengths.sum() / (len(rows) * 8192) < 0.02


def test_packing_takes_under_25_microseconds_a_sample_on_a_busy_machine() -> None:
    lengths, _ = llava_lengths(100_000)
    order = np.random.default_rng(1).permutation(len(lengths))
    start = time.process_time()
    pack(lengths, order, 8192)
    assert (time.process_time() - start) / len(lengths) < 25e-6
