"""Indices from sizes alone, against the slow way and against transformers to the bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.pictures import picture
from transformers.vision_utils import (
    get_vision_interpolation_indices_and_weights,
    get_vision_position_ids,
)

from brim.data.geometry import Grid
from brim.data.indices import (
    boundaries,
    document_positions,
    interpolation,
    padded,
    patch_positions,
    write_patches,
    write_video_patches,
)

SIDES = st.integers(1, 30).map(lambda n: 2 * n)
parts = st.lists(
    st.one_of(st.integers(1, 5), st.builds(lambda h, w: Grid(1, h, w), SIDES, SIDES)),
    min_size=1,
    max_size=6,
)


@given(height=SIDES, width=SIDES, side=st.sampled_from([6, 24, 48]))
def test_any_frame_and_any_table_of_positions(height: int, width: int, side: int) -> None:
    grid = torch.tensor([[1, height, width]])
    expected = get_vision_position_ids(grid, 2).numpy()
    np.testing.assert_array_equal(patch_positions(height, width, 2), expected)
    rows, weights = get_vision_interpolation_indices_and_weights(
        grid, num_grid_per_side=side, align_corners=True, spatial_merge_size=2
    )
    ours = interpolation(height, width, 2, side)
    np.testing.assert_array_equal(ours[0], rows.numpy())
    np.testing.assert_array_equal(ours[1], weights.numpy())


@given(parts)
def test_positions_token_by_token(found: list[int | Grid]) -> None:
    expected: list[tuple[int, int, int]] = []
    at = 0
    for part in found:
        if isinstance(part, int):
            expected += [(at + n,) * 3 for n in range(part)]
            at += part
            continue
        rows, columns = part.h // 2, part.w // 2
        expected += [(at, at + r, at + c) for r in range(rows) for c in range(columns)]
        at += max(rows, columns)
    np.testing.assert_array_equal(document_positions(found, 2).T, expected)


def test_four_patches_in_a_row_are_one_visual_token() -> None:
    blocks = patch_positions(4, 6, 2).reshape(-1, 4, 2)
    for number, block in enumerate(blocks):
        row, column = divmod(number, 3)
        corners = [(2 * row + r, 2 * column + c) for r in (0, 1) for c in (0, 1)]
        assert [tuple(p) for p in block.tolist()] == corners


def test_the_corners_of_a_frame_sit_on_the_corners_of_the_table() -> None:
    rows, weights = interpolation(6, 10, 2)
    at = [tuple(p) for p in patch_positions(6, 10, 2).tolist()]
    for patch, position in (((0, 0), 0), ((0, 9), 47), ((5, 0), 47 * 48), ((5, 9), 48 * 48 - 1)):
        k = at.index(patch)
        assert rows[k][weights[k].argmax()] == position
        assert weights[k].max() == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(weights.sum(axis=1), 1, atol=1e-6)


@given(st.lists(st.integers(0, 50), max_size=9))
def test_boundaries_are_running_sums_from_zero(lengths: list[int]) -> None:
    found = boundaries(lengths)
    assert found.dtype == np.int32
    assert found.tolist() == [sum(lengths[:n]) for n in range(len(lengths) + 1)]


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.booleans())
def test_each_pixel_of_a_patch_is_where_it_belongs(h: int, w: int, planes: bool) -> None:
    pixels = picture(32 * h, 32 * w, h + w)
    lying = np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0)
    out = np.empty((4 * h * w, 768), np.uint8)
    write_patches(lying if planes else pixels, out, 16, 2)
    for patch, (row, column) in zip(out, patch_positions(2 * h, 2 * w, 2), strict=True):
        square = pixels[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
        np.testing.assert_array_equal(patch.reshape(3, 16, 16), square.transpose(2, 0, 1))


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_two_frames_share_a_patch_and_an_odd_last_one_is_shown_twice(count: int) -> None:
    frames = [picture(32, 64, n) for n in range(count)]
    groups = -(-count // 2)
    out = np.empty((groups * 8, 1536), np.uint8)
    write_video_patches(frames, out, 16, 2)
    shaped = out.reshape(groups, 8, 3, 2, 256)
    for group in range(groups):
        for moment in (0, 1):
            single = np.empty((8, 768), np.uint8)
            write_patches(frames[min(2 * group + moment, count - 1)], single, 16, 2)
            np.testing.assert_array_equal(shaped[group, :, :, moment], single.reshape(8, 3, 256))


def test_what_is_padded_is_zero_behind() -> None:
    out = np.full(8, 9)
    padded([np.array([1, 2]), np.array([], int), np.array([3])], out)
    assert out.tolist() == [1, 2, 3, 0, 0, 0, 0, 0]
    padded([], out)
    assert not out.any()
