"""Every index that a step needs, from sizes alone (numpy), so that a step derives none.

The order of patches inside a frame is (block row, block column, row in block, column in block) with
``merge`` × ``merge`` blocks: four consecutive patches make one visual token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.data.geometry import Grid

Int32 = NDArray[np.int32]

POSITIONS_SIDE = 48
"""The tower's learned positions are a square of this side."""


def boundaries(lengths: Iterable[int]) -> Int32:
    """Cumulative lengths from 0, int32 [n + 1]."""
    return np.cumsum([0, *lengths], dtype=np.int64).astype(np.int32)


def document_positions(parts: Sequence[int | Grid], merge: int) -> Int32:
    """M-RoPE positions T, H, W of one document, int32 [3, length].

    ``parts``: text tokens as their number, frames as their grid (t = 1).  A text token adds 1 to
    all three.  A frame at p has T = p, H = p + row, W = p + column on the merged grid, and what
    follows starts at p + max(rows, columns): ``Qwen3VLModel.get_rope_index``.
    """
    pieces, start = [], 0
    for part in parts:
        if isinstance(part, int):
            pieces.append(np.broadcast_to(np.arange(start, start + part), (3, part)))
            start += part
        else:
            rows, columns = part.h // merge, part.w // merge
            row, column = np.divmod(np.arange(rows * columns), columns)
            pieces.append(np.stack([np.full(rows * columns, start), start + row, start + column]))
            start += max(rows, columns)
    return np.concatenate(pieces, axis=1).astype(np.int32)


@lru_cache(maxsize=256)
def patch_positions(height: int, width: int, merge: int) -> Int32:
    """Row and column of each patch of a frame of height × width patches, int32 [n, 2]."""
    rows, columns = np.divmod(np.arange(height * width).reshape(height, width), width)
    blocks = (height // merge, merge, width // merge, merge)
    ordered = [axis.reshape(blocks).swapaxes(1, 2).reshape(-1) for axis in (rows, columns)]
    return np.stack(ordered, axis=1).astype(np.int32)


@lru_cache(maxsize=256)
def interpolation(
    height: int, width: int, merge: int, side: int = POSITIONS_SIDE
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Learned positions to blend for each patch and their weights, int64 and float32 [n, 4].

    Bilinear with align_corners: the first and last patch of an axis sit on the first and last
    learned position (``transformers.vision_utils.get_vision_interpolation_indices_and_weights``).
    """
    at = patch_positions(height, width, merge)
    taps, weights = [], []
    for axis, size in enumerate((height, width)):
        exact = at[:, axis].astype(np.float32) * np.float32(side - 1) / np.float32(max(size - 1, 1))
        low = np.floor(exact).astype(np.int64)
        share = exact - np.floor(exact)
        taps.append(np.stack([low, np.minimum(low + 1, side - 1)], axis=1))
        weights.append(np.stack([1 - share, 1 - (1 - share)], axis=1))
    indices = taps[0][:, :, None] * side + taps[1][:, None, :]
    products = weights[0][:, :, None] * weights[1][:, None, :]
    return indices.reshape(-1, 4), products.reshape(-1, 4).astype(np.float32)


def write_patches(
    pixels: NDArray[np.uint8], out: NDArray[np.uint8], patch: int, merge: int
) -> None:
    """uint8 [height, width, 3] → ``out`` [n, 3 · patch · patch] in the order of this module.

    A patch's values run over (channel, row, column).
    """
    height, width, channels = pixels.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    # a row of a patch is one item of ``patch`` bytes: a third quicker than byte by byte
    item = np.dtype((np.void, patch))
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1)).view(item)
    blocks = planes.reshape(channels, rows, merge, patch, columns, merge)
    target = out.view(item).reshape(rows, columns, merge, merge, channels, patch)
    np.copyto(target, blocks.transpose(1, 4, 2, 5, 0, 3))


def write_video_patches(
    frames: Sequence[NDArray[np.uint8]], out: NDArray[np.uint8], patch: int, merge: int
) -> None:
    """Frames of one size → ``out`` [t · n, 3 · T · patch · patch], values (channel, time, row,
    column); T frames share a patch, and an incomplete last group repeats the last frame.
    """
    values = 3 * patch * patch
    temporal = out.shape[1] // values
    per_frame = frames[0].shape[0] * frames[0].shape[1] // patch**2
    single = np.empty((per_frame, values), np.uint8)
    groups = -(-len(frames) // temporal)
    shaped = out.reshape(groups, per_frame, 3, temporal, patch * patch)
    for group in range(groups):
        for time in range(temporal):
            frame = frames[min(group * temporal + time, len(frames) - 1)]
            write_patches(frame, single, patch, merge)
            shaped[group, :, :, time] = single.reshape(per_frame, 3, patch * patch)


def padded(arrays: Sequence[NDArray[Any]], out: NDArray[Any]) -> None:
    """``arrays`` one after the other into ``out``, zeros behind."""
    at = 0
    for array in arrays:
        out[at : at + len(array)] = array
        at += len(array)
    out[at:] = 0
