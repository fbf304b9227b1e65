"""Rows without pictures on ranks whose neighbours have some.

A rank that left the tower out would never join the collectives of its blocks, and the run would
hang.  So where the plan shows that any rank has pictures, a row without takes a blank: vision rows
that are all padding, which no token reads.  The tower runs on them, and its gradient is zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from brim.model.batch import PackedBatch


def with_tower(row: PackedBatch, length: int) -> PackedBatch:
    """``row``, with ``length`` blank vision rows if it has none; no word goes to the device."""
    if row.vision_length:
        return row
    device = row.input_ids.device
    return replace(
        row,
        vision_cu_seqlens=torch.arange(0, length + 1, length, dtype=torch.int32, device=device),
        vision_positions=row.vision_positions.new_zeros((length, 2)),
        vision_interp_indices=row.vision_interp_indices.new_zeros((length, 4)),
        vision_interp_weights=row.vision_interp_weights.new_zeros((length, 4)),
        counts=replace(row.counts, longest_frame=length),
    )


def agreed(rows: Sequence[PackedBatch], tower: Sequence[bool], length: int) -> list[PackedBatch]:
    """The rows of a step with the tower where ``tower`` says that the ranks run it."""
    return [with_tower(row, length) if runs else row for row, runs in zip(rows, tower, strict=True)]
