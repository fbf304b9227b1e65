"""The vision arrays of a row from its frames' sizes alone: numpy only.

Generated rows (``brim.train.synthetic``) are made of these.  The order of patches and the formulas
are :mod:`brim.data.indices`', by which the loader makes its rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.data import indices
from brim.data.geometry import Grid
from brim.data.indices import boundaries, interpolation, patch_positions

__all__ = ["boundaries", "document_positions", "vision_arrays"]


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
    blends = [interpolation(h, w, merge, side) for h, w in grids]
    return {
        "vision_cu_seqlens": boundaries([*lengths, *([padding] if padding else [])]),
        "vision_positions": _stack(
            [patch_positions(h, w, merge) for h, w in grids], padding, 2, np.int32
        ),
        "vision_interp_indices": _stack([i for i, _ in blends], padding, 4, np.int64),
        "vision_interp_weights": _stack([w for _, w in blends], padding, 4, np.float32),
    }


def document_positions(parts: Sequence[int | tuple[int, int]], merge: int = 2) -> NDArray[np.int32]:
    """(3, length) int32 M-RoPE positions T, H, W of one document.

    ``parts`` is the document in order: an integer is a run of text tokens, a pair a frame's
    (height, width) in patches.
    """
    return indices.document_positions(
        [part if isinstance(part, int) else Grid(1, *part) for part in parts], merge
    )


def _stack(arrays: list[NDArray[Any]], padding: int, width: int, dtype: Any) -> NDArray[Any]:
    return np.concatenate([*arrays, np.zeros((padding, width), dtype)]).astype(dtype, copy=False)
