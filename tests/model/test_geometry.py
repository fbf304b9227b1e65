from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from brim.data.indices import interpolation, patch_positions
from brim.model.geometry import boundaries, document_positions, vision_arrays

SIDES = st.integers(1, 30).map(lambda n: 2 * n)


@given(height=SIDES, width=SIDES, side=st.sampled_from([6, 48]))
def test_positions_and_interpolation_equal_transformers_to_the_bit(
    height: int, width: int, side: int
) -> None:
    grid = torch.tensor([[1, height, width]])
    expected = get_vision_position_ids(grid, 2).numpy()
    assert np.array_equal(patch_positions(height, width, 2), expected)
    their_rows, their_weights = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=side, align_corners=True, spatial_merge_size=2
    )
    rows, weights = interpolation(height, width, 2, side)
    assert np.array_equal(rows, their_rows.numpy())
    assert np.array_equal(weights, their_weights.numpy())


@given(grids=st.lists(st.tuples(SIDES, SIDES), max_size=5), bucket=st.sampled_from([4, 64, 1024]))
def test_vision_rows_fill_their_bucket_and_frames_keep_their_rows(
    grids: list[tuple[int, int]], bucket: int
) -> None:
    arrays = vision_arrays(grids, bucket=bucket)
    real = sum(h * w for h, w in grids)
    total = -(-real // bucket) * bucket
    assert {len(arrays[n]) for n in arrays if n != "vision_cu_seqlens"} == {total}
    assert arrays["vision_cu_seqlens"][-1] == total
    starts = arrays["vision_cu_seqlens"]
    for (height, width), start in zip(grids, starts, strict=False):
        piece = arrays["vision_positions"][start : start + height * width]
        assert np.array_equal(piece, patch_positions(height, width, 2))
    assert not arrays["vision_interp_weights"][real:].any()


def test_positions_after_an_image_continue_at_its_longer_merged_side() -> None:
    positions = document_positions([2, (4, 6), 1])
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5],
        [0, 1, 2, 2, 2, 3, 3, 3, 5],
        [0, 1, 2, 3, 4, 2, 3, 4, 5],
    ]


def test_boundaries_start_at_zero_and_are_int32() -> None:
    assert boundaries([3, 1]).tolist() == [0, 3, 4]
    assert boundaries([]).dtype == np.int32


def test_a_bucket_that_halves_a_visual_token_is_refused() -> None:
    with pytest.raises(AssertionError, match="halves"):
        vision_arrays([(2, 2)], bucket=6)
