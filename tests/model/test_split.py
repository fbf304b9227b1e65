from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from brim.model.batch import check
from brim.model.split import split
from brim.train.synthetic import Document, pack

SUMMED = ("tokens", "scored", "patches", "images", "frames", "documents", "token_squares",
          "patch_squares")  # fmt: skip


@pytest.mark.parametrize("kind", ["text only", "several images", "mixed"])
@pytest.mark.parametrize("extra", [0, 9])
def test_two_halves_have_the_loss_and_the_gradients_of_the_whole_row(
    extra: int, kind: str, make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    model, documents = make_pair(False).ours, samples[kind]
    row = pack(documents, sum(len(d) for d in documents) + extra, bucket=32, side=6)
    whole = model(row)
    whole.backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    halves = split(row)
    assert len(halves) == 2
    total = 0.0
    for half in halves:
        check(half)
        loss = model(half)
        loss.backward()
        total += loss.item()
    assert total == pytest.approx(whole.item(), rel=1e-6)
    for name, parameter in model.named_parameters():
        if name in expected:
            gap = (parameter.grad - expected[name]).norm() / expected[name].norm().clamp(min=1e-12)
            assert gap < 1e-5, name
    for name in SUMMED:
        assert sum(getattr(h.counts, name) for h in halves) == getattr(row.counts, name), name


def test_a_row_is_cut_where_its_halves_are_most_alike() -> None:
    import numpy as np

    from brim.train.synthetic import document

    rng = np.random.default_rng(0)
    documents = [document(rng, [], text=n, answer=1, vocabulary=50) for n in (9, 19, 39, 9)]
    first, second = split(pack(documents, 90))
    assert (first.length, second.length) == (30, 60)
    assert torch.equal(first.cu_seqlens, torch.tensor([0, 10, 30], dtype=torch.int32))
    assert (first.counts.documents, second.counts.documents) == (2, 2)
    again = [half.length for part in (first, second) for half in split(part)]
    assert again == [10, 20, 40, 20]
    (alone,) = split(split(first)[0])
    assert alone.length == 10
