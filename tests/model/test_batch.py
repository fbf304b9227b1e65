from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from brim.model.batch import TENSORS, PackedBatch, RowCounts, check
from brim.train.synthetic import Document, pack


@pytest.fixture
def batch(samples: dict[str, list[Document]]) -> PackedBatch:
    documents = samples["mixed"]
    return pack(documents, sum(len(d) for d in documents) + 5, bucket=16, side=6)


def test_a_sound_row_passes(batch: PackedBatch) -> None:
    check(batch)


Change = Callable[[PackedBatch], dict[str, Any]]
BREACHES: dict[str, tuple[Change, str]] = {
    "a wrong dtype": (lambda b: {"input_ids": b.input_ids.int()}, "input_ids is torch.int32"),
    "a visual token named twice": (
        lambda b: {"splice_rows": torch.zeros_like(b.splice_rows)},
        "named twice",
    ),
    "an empty document": (
        lambda b: {"cu_seqlens": torch.cat((b.cu_seqlens[:1], b.cu_seqlens))},
        "a segment is empty",
    ),
    "boundaries that end early": (lambda b: {"cu_seqlens": b.cu_seqlens[:-1]}, ""),
    "half a visual token": (lambda b: {"patches": b.patches[:-1]}, ""),
    "a label without its row": (lambda b: {"labels": b.labels[1:]}, ""),
    "a row outside": (lambda b: {"scored_rows": b.scored_rows + 1000}, ""),
    "positions of another row": (lambda b: {"position_ids": b.position_ids[:, 1:]}, ""),
    "weights without indices": (
        lambda b: {"vision_interp_weights": b.vision_interp_weights[1:]},
        "",
    ),
    "a longest document that is not": (
        lambda b: {"counts": replace(b.counts, longest_document=3)},
        "",
    ),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_every_broken_promise_is_found(breach: str, batch: PackedBatch) -> None:
    change, message = BREACHES[breach]
    with pytest.raises(AssertionError, match=message or None):
        check(replace(batch, **change(batch)))


def test_arrays_become_tensors_that_share_their_memory(batch: PackedBatch) -> None:
    arrays: dict[str, Any] = {name: getattr(batch, name).numpy() for name in TENSORS}
    counts = {n: getattr(batch.counts, n) for n in RowCounts.__dataclass_fields__}
    made = PackedBatch.from_arrays({**arrays, "counts": counts, "sample_ids": [3, 1]})
    assert made.counts == batch.counts
    assert made.sample_ids == (3, 1)
    arrays["input_ids"][0] = 7
    assert made.input_ids[0] == 7


def test_moving_a_row_keeps_the_hosts_integers(batch: PackedBatch) -> None:
    moved = batch.to("meta")
    assert all(getattr(moved, name).is_meta for name in TENSORS)
    assert moved.counts is batch.counts
    assert (moved.length, moved.vision_length) == (batch.length, batch.vision_length)


def test_counts_add_up_and_keep_the_longest() -> None:
    one = RowCounts(
        tokens=1, scored=2, patches=3, images=4, frames=5, documents=6, token_squares=7,
        patch_squares=8, longest_document=9, longest_frame=10,
    )  # fmt: skip
    total = one + replace(one, longest_document=20, longest_frame=1)
    assert (total.tokens, total.patch_squares) == (2, 16)
    assert (total.longest_document, total.longest_frame) == (20, 10)


def test_synthetic_rows_count_what_they_hold(
    batch: PackedBatch, samples: dict[str, list[Document]]
) -> None:
    documents, counts = samples["mixed"], batch.counts
    assert counts.tokens == sum(map(len, documents)) == batch.length - 5
    assert counts.scored == sum(int(d.scored.sum()) for d in documents)
    assert counts.documents == len(documents) == len(batch.cu_seqlens) - 2
    frames = [f.height * f.width for d in documents for f in d.frames]
    assert counts.patch_squares == sum(n * n for n in frames)
    assert batch.patches.shape[0] + batch.video_patches.shape[0] == counts.patches


def test_labels_are_the_tokens_after_their_rows(batch: PackedBatch) -> None:
    assert torch.equal(batch.input_ids[batch.scored_rows + 1], batch.labels)
    starts = set(batch.cu_seqlens.tolist())
    assert not starts & set((batch.scored_rows + 1).tolist())


def test_photographs_fill_their_row_and_repeat_with_their_seed() -> None:
    from brim.model.config import ModelConfig
    from brim.train.synthetic import photographs

    config = ModelConfig.named("2B")
    first, again, other = (next(photographs(config, 4096, seed=s)) for s in (1, 1, 2))
    check(first)
    assert first.counts.tokens == 4096
    assert torch.equal(first.input_ids, again.input_ids)
    assert not torch.equal(first.input_ids, other.input_ids)
    assert np.mean(first.patches.numpy()) == pytest.approx(127.5, abs=1)
