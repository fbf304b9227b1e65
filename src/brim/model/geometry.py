"""The indices of a row, from sizes alone, as the model defines them: numpy only.

Generated rows (``brim.train.synthetic``) are made of these, and the loader's own, which writes
into shared memory, is tested against them.

The order of patches inside a frame is (block row, block column, row in block, column in block)
with 2 × 2 blocks, so that four consecutive patches make one visual token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@lru_cache(maxsize=512)
def patch_positions(height: int, width: int, merge: int = 2) -> Ints:
    """(height · width, 2) int32: row and column of each patch, in the order above.

    ``height`` and ``width`` count patches and are multiples of ``merge``.
    """
    rows, columns = np.meshgrid(np.arange(height), np.arange(width), indexing="ij")
    blocks = (height // merge, merge, width // merge, merge)
    ordered = [axis.reshape(blocks).swapaxes(1, 2).reshape(-1) for axis in (rows, columns)]
    return np.stack(ordered, axis=1).astype(np.int32)


@lru_cache(maxsize=512)
def interpolation(
    height: int, width: int, side: int = 48, merge: int = 2
) -> tuple[NDArray[np.int64], Floats]:
    """Rows of the ``side`` × ``side`` position table to blend for each patch, and their weights.

    Bilinear with align_corners, as ``F.interpolate`` does it: the first and last patch of an axis
    sit on the first and last learned position.  Returns (height · width, 4) int64 and float32,
    equal to transformers' ``get_vision_interpolation_indices_and_weights`` in float32.
    """
    positions = patch_positions(height, width, merge)
    taps, weights = [], []
    for axis, size in enumerate((height, width)):
        index = positions[:, axis].astype(np.float32)
        source = index * np.float32(side - 1) / np.float32(max(size - 1, 1))
        low = np.floor(source)
        share = (source - low).astype(np.float32)
        first = low.astype(np.int64)
        taps.append(np.stack([first, np.minimum(first + 1, side - 1)], axis=1))
        weights.append(np.stack([1 - share, 1 - (1 - share)], axis=1))
    indices = taps[0][:, :, None] * side + taps[1][:, None, :]
    products = weights[0][:, :, None] * weights[1][:, None, :]
    return indices.reshape(-1, 4), products.reshape(-1, 4).astype(np.float32)


def vision_arrays(
    grids: Sequence[tuple[int, int]], *, bucket: int = 4, side: int = 48, merge: int = 2
) -> dict[str, Any]:
    """The vision arrays of a row from its frames' (height, width) in patches, in row order.

    ``bucket`` is the multiple to which the vision rows are padded; a multiple of merge².
    Returns the fields of :class:`brim.model.batch.PackedBatch` that start with ``vision_``.
    """
    assert bucket % merge**2 == 0, "a bucket that halves a visual token"
    lengths = [height * width for height, width in grids]
    padding = -sum(lengths) % bucket
    indices = [interpolation(h, w, side, merge) for h, w in grids]
    return {
        "vision_cu_seqlens": boundaries([*lengths, *([padding] if padding else [])]),
        "vision_positions": _stack(
            [patch_positions(h, w, merge) for h, w in grids], padding, 2, np.int32
        ),
        "vision_interp_indices": _stack([i for i, _ in indices], padding, 4, np.int64),
        "vision_interp_weights": _stack([w for _, w in indices], padding, 4, np.float32),
    }


def boundaries(lengths: Iterable[int]) -> Ints:
    """Cumulative lengths with a leading 0, int32."""
    return np.concatenate([[0], np.cumsum(list(lengths), dtype=np.int64)]).astype(np.int32)


def document_positions(parts: Sequence[int | tuple[int, int]], merge: int = 2) -> Ints:
    """(3, length) int32 M-RoPE positions T, H, W of one document.

    ``parts`` is the document in order: an integer is a run of text tokens, a pair a frame's
    (height, width) in patches.  A text token adds 1 to all three; a frame at p has T = p,
    H = p + row, W = p + column on the merged grid, and the next part starts at
    p + max(rows, columns).
    """
    pieces, start = [], 0
    for part in parts:
        if isinstance(part, int):
            pieces.append(np.broadcast_to(np.arange(start, start + part), (3, part)))
            start += part
            continue
        rows, columns = part[0] // merge, part[1] // merge
        row, column = np.divmod(np.arange(rows * columns), columns)
        pieces.append(np.stack([np.full_like(row, start), start + row, start + column]))
        start += max(rows, columns)
    return np.concatenate(pieces, axis=1).astype(np.int32)


def _stack(arrays: list[NDArray[Any]], padding: int, width: int, dtype: Any) -> NDArray[Any]:
    return np.concatenate([*arrays, np.zeros((padding, width), dtype)]).astype(dtype, copy=False)
