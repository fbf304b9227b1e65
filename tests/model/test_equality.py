"""Ours against transformers: loss, logits and every gradient, on padded batches of theirs.

Norm: for each tensor |a - b| / |b| in the 2-norm.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.model.batch import PackedBatch, check
from brim.train.synthetic import Document, document, pack

KINDS = ("text only", "one image", "several images", "video", "mixed")


def gap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    scale = float(theirs.double().norm())
    return float((ours.double() - theirs.double()).norm()) / (scale or 1.0)


def row(documents: list[Document], extra: int = 0, bucket: int = 4) -> PackedBatch:
    batch = pack(documents, sum(len(d) for d in documents) + extra, bucket=bucket, side=6)
    check(batch)
    return batch


def scored_logits(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Logits that predict a label, in the order of documents and tokens."""
    return logits[:, :-1][labels[:, 1:] != -100]


def step(pair: Any, documents: list[Document], batch: PackedBatch) -> tuple[float, float]:
    theirs = pair.their_batch(documents)
    their_loss = pair.theirs(**theirs).loss
    their_loss.backward()
    our_loss = pair.ours(batch, 1 / batch.counts.scored)
    our_loss.backward()
    return our_loss.item(), their_loss.item()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_every_gradient_equal_transformers_to_1e_5_in_float32(
    kind: str, tied: bool, make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    pair = make_pair(tied)
    ours, theirs = step(pair, samples[kind], row(samples[kind], extra=7, bucket=16))
    assert abs(ours - theirs) / theirs < 1e-6
    expected, found = pair.their_gradients(), pair.our_gradients()
    assert set(expected) == set(found)
    wrong = {n: gap(found[n], expected[n]) for n in expected if gap(found[n], expected[n]) > 1e-5}
    assert not wrong


@pytest.mark.parametrize("kind", KINDS)
def test_logits_equal_transformers_to_1e_5_in_float32(
    kind: str, make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    pair = make_pair(False)
    theirs = pair.their_batch(samples[kind])
    with torch.no_grad():
        expected = scored_logits(pair.theirs(**theirs).logits, theirs["labels"])
        found = pair.ours.logits(row(samples[kind]))
    assert gap(found, expected) < 1e-5


def test_without_deepstack_the_gradients_are_equal_too(
    make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    pair = make_pair(True, deepstack_visual_indexes=[])
    ours, theirs = step(pair, samples["mixed"], row(samples["mixed"]))
    assert abs(ours - theirs) / theirs < 1e-6
    expected, found = pair.their_gradients(), pair.our_gradients()
    assert max(gap(found[n], expected[n]) for n in expected) < 1e-5


def test_in_bfloat16_loss_and_gradients_differ_by_no_more_than_transformers_does_from_float32(
    make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    documents = samples["mixed"]
    exact, rounded = make_pair(False), make_pair(False, torch.bfloat16)
    batch = row(documents)
    step(exact, documents, batch)
    ours, theirs = step(rounded, documents, batch)
    assert abs(ours - theirs) / theirs < 2**-8
    truth, reference, found = (
        exact.their_gradients(),
        rounded.their_gradients(),
        rounded.our_gradients(),
    )

    def error(grads: dict[str, torch.Tensor]) -> float:
        """Relative error of the whole gradient in the 2-norm."""
        square = sum(float((grads[n].double() - truth[n].double()).square().sum()) for n in truth)
        return (square / sum(float(truth[n].double().square().sum()) for n in truth)) ** 0.5

    assert error(found) < 1.1 * error(reference)


@pytest.mark.parametrize("kind", ["mixed", "several images"])
def test_packed_documents_do_not_see_each_other(
    kind: str, make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    pair, documents = make_pair(True), samples[kind]
    with torch.no_grad():
        alone = torch.cat([pair.ours.logits(row([d])) for d in documents])
        # stills come before videos in a row, so packing also reorders the tower's rows
        together = pair.ours.logits(row(documents, extra=5, bucket=32))
    assert gap(together, alone) < 1e-6


def test_padding_changes_no_gradient(
    make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    pair, documents = make_pair(True), samples["mixed"]
    grads = []
    for extra, bucket in ((0, 4), (33, 64)):
        pair.ours.zero_grad()
        pair.ours(row(documents, extra, bucket)).backward()
        grads.append({n: g.clone() for n, g in pair.our_gradients().items()})
    assert max(gap(grads[1][n], grads[0][n]) for n in grads[0]) < 2e-6


def test_a_row_without_labels_has_loss_zero_and_zero_gradients(
    make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    (whole,) = samples["one image"]
    silent = Document(whole.parts, whole.scored & False)
    loss = make_pair(True).ours(row([silent]))
    loss.backward()
    assert loss.item() == 0
    assert all(not g.any() for g in make_pair(True).our_gradients().values())


@pytest.mark.parametrize("blocks", [(0, 4), (2, 0), (4, 4)])
def test_recomputed_blocks_give_the_same_bits(
    blocks: tuple[int, int], make_pair: Callable[..., Any], samples: dict[str, list[Document]]
) -> None:
    from brim.model.qwen3vl import Recompute

    pair, batch = make_pair(True), row(samples["mixed"])
    pair.ours(batch).backward()
    plain = {n: g.clone() for n, g in pair.our_gradients().items()}
    pair.ours.zero_grad()
    pair.ours.recompute = Recompute(text_blocks=blocks[0], vision_blocks=blocks[1])
    try:
        pair.ours(batch).backward()
    finally:
        pair.ours.recompute = Recompute()
    assert all(torch.equal(g, plain[n]) for n, g in pair.our_gradients().items())


GRIDS = st.sampled_from([(2, 2), (2, 4), (4, 4), (6, 2), (4, 8)])


@given(
    shapes=st.lists(
        st.tuples(st.lists(GRIDS, max_size=3), st.integers(1, 6), st.integers(1, 5), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    extra=st.integers(0, 9),
    bucket=st.sampled_from([4, 16, 64]),
    order=st.randoms(use_true_random=False),
)
@settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_mixture_in_any_order_gives_each_document_its_own_logits(
    shapes: list[tuple[list[tuple[int, int]], int, int, bool]],
    extra: int,
    bucket: int,
    order: Random,
    make_pair: Callable[..., Any],
) -> None:
    model = make_pair(False).ours
    rng = np.random.default_rng(0)
    documents = [
        document(rng, grids, text=text, answer=answer, vocabulary=100, video=video)
        for grids, text, answer, video in shapes
    ]
    with torch.no_grad():
        alone = {id(d): model.logits(row([d])) for d in documents}
        order.shuffle(documents)
        together = model.logits(row(documents, extra, bucket))
    assert gap(together, torch.cat([alone[id(d)] for d in documents])) < 2e-6
