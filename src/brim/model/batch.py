"""One packed row: everything a step needs, with every index already computed on the host.

The step never derives an index from a tensor's value, so it never waits for the device.  What
would be derived (document boundaries, rotary positions, interpolation of the position table,
the rows that receive visual features, the rows that are scored) comes with the row.

The legend of the shapes:

====  ==========================================================================================
L     tokens of a row, the same for all rows of a run (padding included)
D     documents in the row; a tail of padding, when there is one, is one more document
S     scored rows: rows whose hidden state predicts a label (``labels[i]`` is the *next* token of
      its document, so nothing is shifted later and no document predicts the next one's start)
A     patches of still images
B     patches of video frames
P     vision rows: A + B + padding up to a bucket, so that compiled blocks see few shapes
F     frames (a still image is one frame); a padding tail is one more
M     visual tokens, (A + B) / merge²
C     values of a patch in one frame, channels · patch · patch = 3 · 16 · 16 = 768
====  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

MERGE = 2  # spatial_merge_size of every Qwen3-VL; a visual token is a block of 2 × 2 patches


@dataclass(frozen=True, kw_only=True, slots=True)
class RowCounts:
    """What the host knows about a row without reading the device: plain integers.

    Padding is counted in none of them.
    """

    tokens: int
    """Real tokens, text and visual."""
    scored: int
    """Labels that count in the loss."""
    patches: int
    """A + B."""
    images: int
    """Still images and videos."""
    frames: int
    """Frames of the tower; a pair of video frames that share a patch is one."""
    documents: int
    token_squares: int
    """Σ length² over the documents: the causal attention's work."""
    patch_squares: int
    """Σ patches² over the frames: the tower's attention's work."""
    longest_document: int
    """Longest segment of ``cu_seqlens``, the padding tail included: a kernel's launch bound."""
    longest_frame: int
    """Longest segment of ``vision_cu_seqlens``, the padding tail included; 0 without vision."""

    def __add__(self, other: RowCounts) -> RowCounts:
        summed = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(RowCounts)}
        for name in ("longest_document", "longest_frame"):
            summed[name] = max(getattr(self, name), getattr(other, name))
        return RowCounts(**summed)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackedBatch:
    """The tensors of one row (see the module's legend); a text-only row has A = B = P = M = 0."""

    input_ids: torch.Tensor
    """(L,) int64.  Visual places hold the image or video pad token; padding holds any valid id."""
    position_ids: torch.Tensor
    """(3, L) int32: M-RoPE positions T, H, W, starting from 0 in every document."""
    cu_seqlens: torch.Tensor
    """(D + 1,) int32: 0, cumulative document lengths, L.  The padding tail is the last segment."""
    scored_rows: torch.Tensor
    """(S,) int64, ascending rows of ``input_ids`` whose *next* token is a label."""
    labels: torch.Tensor
    """(S,) int64: the label of each scored row; no ignore index is needed."""
    patches: torch.Tensor
    """(A, C) uint8: still images, one frame each, raw pixel values 0..255 in the order
    (channel, 16, 16).  Patches of an image run over (block row, block column, row in block,
    column in block) with 2 × 2 blocks.  The device normalises: x / 127.5 - 1.  Floating values are
    normalised already."""
    video_patches: torch.Tensor
    """(B, 2 · C) uint8: two consecutive video frames, order (channel, time, 16, 16)."""
    vision_cu_seqlens: torch.Tensor
    """(F + 1,) int32: boundaries of the frames among the P vision rows: first the stills in the
    order of ``patches``, then the video frames, then the padding as one segment."""
    vision_positions: torch.Tensor
    """(P, 2) int32: patch row and column inside its frame; 0 in the padding."""
    vision_interp_indices: torch.Tensor
    """(P, 4) int64: rows of the position table (48 × 48, row-major) to blend; 0 in the padding.
    See :func:`brim.data.indices.interpolation`."""
    vision_interp_weights: torch.Tensor
    """(P, 4) float32: their bilinear weights (align_corners); 0 in the padding."""
    splice_rows: torch.Tensor
    """(M,) int64: for visual token j, in the order of the vision rows, the row of ``input_ids``
    that it replaces.  The same rows receive the deepstack features after layers 0, 1 and 2."""
    counts: RowCounts
    sample_ids: tuple[int, ...] = ()
    """Identity of the samples, reported when a step goes wrong."""

    @classmethod
    def from_arrays(cls, row: Mapping[str, Any]) -> PackedBatch:
        """A row of numpy arrays under these names (``counts``: a mapping of integers) as tensors
        that share their memory."""
        values = {
            name: torch.from_numpy(row[name]) if isinstance(row[name], np.ndarray) else row[name]
            for name in TENSORS
        }
        counts = row["counts"]
        if not isinstance(counts, RowCounts):
            counts = RowCounts(**{f.name: int(counts[f.name]) for f in fields(RowCounts)})
        return cls(**values, counts=counts, sample_ids=tuple(row.get("sample_ids", ())))

    def to(self, device: torch.device | str, *, non_blocking: bool = True) -> PackedBatch:
        """The row on ``device``; the host's integers stay on the host."""
        moved = {n: getattr(self, n).to(device, non_blocking=non_blocking) for n in TENSORS}
        return PackedBatch(**moved, counts=self.counts, sample_ids=self.sample_ids)

    @property
    def length(self) -> int:
        """L."""
        return self.input_ids.shape[0]

    @property
    def vision_length(self) -> int:
        """P."""
        return self.vision_positions.shape[0]


TENSORS = tuple(f.name for f in fields(PackedBatch) if f.name not in ("counts", "sample_ids"))
_DTYPES = {
    "input_ids": torch.int64,
    "position_ids": torch.int32,
    "cu_seqlens": torch.int32,
    "scored_rows": torch.int64,
    "labels": torch.int64,
    "patches": torch.uint8,
    "video_patches": torch.uint8,
    "vision_cu_seqlens": torch.int32,
    "vision_positions": torch.int32,
    "vision_interp_indices": torch.int64,
    "vision_interp_weights": torch.float32,
    "splice_rows": torch.int64,
}


def check(batch: PackedBatch) -> None:
    """Assert the promises of a row on the host (tests and the first rows of a run; it reads
    values, so never call it on a device inside the step)."""
    for name, dtype in _DTYPES.items():
        found = getattr(batch, name).dtype
        normalised = name in ("patches", "video_patches") and found.is_floating_point
        assert normalised or found is dtype, f"{name} is {found}; a row has {dtype}"
    length, vision = batch.length, batch.vision_length
    still, video = batch.patches.shape[0], batch.video_patches.shape[0]
    counts = batch.counts
    assert batch.position_ids.shape == (3, length)
    assert batch.scored_rows.shape == batch.labels.shape == (counts.scored,)
    assert still + video == counts.patches <= vision
    assert counts.patches % MERGE**2 == vision % MERGE**2 == 0
    assert batch.splice_rows.shape == (counts.patches // MERGE**2,)
    assert batch.vision_interp_indices.shape == batch.vision_interp_weights.shape == (vision, 4)
    _check_segments(batch.cu_seqlens, length, counts.longest_document)
    _check_segments(batch.vision_cu_seqlens, vision, counts.longest_frame)
    for rows in (batch.scored_rows, batch.splice_rows):
        assert rows.unique().shape == rows.shape, "a row is named twice"
        assert not rows.numel() or 0 <= int(rows.min()) <= int(rows.max()) < length


def _check_segments(boundaries: torch.Tensor, total: int, longest: int) -> None:
    lengths = boundaries.diff()
    assert int(boundaries[0]) == 0
    assert int(boundaries[-1]) == total
    assert bool((lengths > 0).all()), "a segment is empty"
    assert (int(lengths.max()) if lengths.numel() else 0) == longest
