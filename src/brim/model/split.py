"""A packed row as two, cut between documents: half the activations, for a step that found no room.

Reads the row's tensors on the host, so it is no part of an ordinary step.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import torch

from brim.model.batch import MERGE, PackedBatch, RowCounts


def split(row: PackedBatch) -> list[PackedBatch]:
    """The row in two of about the same length; itself when it holds one document.

    The sum of their losses and gradients is the row's.  Neither has padding in its vision rows.
    """
    ends = row.cu_seqlens.tolist()[1:]
    real = [end for end in ends if end <= row.counts.tokens]  # without the padding tail
    if len(real) < 2:
        return [row]
    cut = min(real[:-1], key=lambda end: abs(2 * end - row.counts.tokens))
    return [_part(row, 0, cut), _part(row, cut, row.length)]


def _part(row: PackedBatch, start: int, stop: int) -> PackedBatch:
    """Tokens ``start`` to ``stop``, which are ends of documents."""
    scored = (row.scored_rows >= start) & (row.scored_rows < stop)
    visual = (row.splice_rows >= start) & (row.splice_rows < stop)
    patches = visual.repeat_interleave(MERGE**2)  # a visual token is four patches in a row
    stills, real = row.patches.shape[0], row.counts.patches
    edges = row.cu_seqlens
    frames = [
        (begin, end)
        for begin, end in pairwise(row.vision_cu_seqlens.tolist())
        if end <= real and bool(patches[begin])
    ]
    sizes = [end - begin for begin, end in frames]
    inside = edges[(edges >= start) & (edges <= stop)] - start
    part = PackedBatch(
        input_ids=row.input_ids[start:stop],
        position_ids=row.position_ids[:, start:stop].contiguous(),
        cu_seqlens=inside,
        scored_rows=row.scored_rows[scored] - start,
        labels=row.labels[scored],
        patches=row.patches[patches[:stills]],
        video_patches=row.video_patches[patches[stills:]],
        vision_cu_seqlens=torch.tensor([0, *sizes], dtype=torch.int32, device=edges.device).cumsum(
            0, dtype=torch.int32
        ),
        vision_positions=row.vision_positions[:real][patches],
        vision_interp_indices=row.vision_interp_indices[:real][patches],
        vision_interp_weights=row.vision_interp_weights[:real][patches],
        splice_rows=row.splice_rows[visual] - start,
        counts=row.counts,
        sample_ids=row.sample_ids,
    )
    still_frames = sum(end <= stills for _, end in frames)
    return replace(part, counts=_counts(row, part, sizes, still_frames, first=start == 0))


def _counts(
    row: PackedBatch, part: PackedBatch, frames: list[int], stills: int, *, first: bool
) -> RowCounts:
    """What a video's frames are to images is not known any more, so the second part gets what the
    first leaves, and sums stay what they were."""
    lengths = part.cu_seqlens.diff().tolist()
    padding = 0 if first else row.length - row.counts.tokens
    documents = lengths[:-1] if padding else lengths
    all_stills = int((row.vision_cu_seqlens[1:] <= row.patches.shape[0]).sum())
    return RowCounts(
        tokens=sum(documents),
        scored=len(part.labels),
        patches=sum(frames),
        images=stills if first else row.counts.images - (all_stills - stills),
        frames=len(frames),
        documents=len(documents),
        token_squares=sum(n * n for n in documents),
        patch_squares=sum(n * n for n in frames),
        longest_document=max(lengths),
        longest_frame=max(frames, default=0),
    )
