from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from brim.model import flops
from brim.model.batch import RowCounts
from brim.model.config import ModelConfig
from brim.model.flops import Flops, Trained
from brim.train.synthetic import Document, pack

# FLOPs of one token, one merged token or one patch, forward; × context or × patches for attention
CLOSED = {
    #       text     head     attention  tower    tower attention  merger
    "2B": (2.819e9, 0.622e9, 229_376, 607.1e6, 98_304, 50.3e6),
    "4B": (7.267e9, 0.778e9, 589_824, 607.1e6, 98_304, 54.5e6),
    "8B": (13.892e9, 1.245e9, 589_824, 825.7e6, 124_416, 80.2e6),
    "32B": (62.411e9, 1.556e9, 2_097_152, 825.7e6, 124_416, 89.7e6),
}
ONE = RowCounts(
    tokens=1, scored=1, patches=4, images=1, frames=1, documents=1, token_squares=2,
    patch_squares=1, longest_document=1, longest_frame=4,
)  # fmt: skip


@pytest.mark.parametrize("size", CLOSED)
def test_the_parts_agree_with_the_closed_figures_of_the_family(size: str) -> None:
    text, head, attention, tower, tower_attention, merger = CLOSED[size]
    found = flops.forward(ModelConfig.named(size), ONE)
    assert found.text_linear == pytest.approx(text, rel=2e-4)
    assert found.head == pytest.approx(head, rel=1e-3)
    assert found.text_attention == attention
    assert (found.tower_linear + found.patch_embedding) / 4 == pytest.approx(tower, rel=2e-4)
    assert found.tower_attention == tower_attention
    assert found.mergers / 4 == pytest.approx(merger, rel=1e-3)


@pytest.mark.parametrize(
    ("size", "per_merged_token"), [("2B", 4.24e9), ("4B", 4.26e9), ("8B", 5.66e9), ("32B", 5.70e9)]
)
def test_a_merged_token_of_a_megapixel_costs_the_tower_what_is_published(
    size: str, per_merged_token: float
) -> None:
    patches = 4096
    counts = replace(ONE, patches=patches, patch_squares=patches**2, tokens=0, scored=0)
    found = flops.forward(ModelConfig.named(size), replace(counts, token_squares=0))
    assert found.total / (patches / 4) == pytest.approx(per_merged_token, rel=2e-3)


PARTS = {
    "text": ("blocks.", "norm."),
    "embedding": ("embedding.",),
    "head": ("head.",),
    "merger": ("visual.merger.", "visual.deepstack."),
    "tower": ("visual.blocks.", "visual.patch_embedding.", "visual.positions."),
}
FROZEN: list[frozenset[str]] = [
    frozenset(),
    frozenset({"tower"}),
    frozenset({"tower", "merger"}),
    frozenset({"tower", "merger", "embedding"}),
    frozenset({"text", "embedding", "head"}),
    frozenset({"text", "embedding", "head", "tower"}),
    frozenset({"text", "embedding", "merger", "tower"}),
    frozenset({"merger"}),
]


@pytest.mark.parametrize("frozen", FROZEN, ids=lambda f: "+".join(sorted(f)) or "nothing")
@pytest.mark.parametrize("kind", ["video", "mixed"])
def test_linear_flops_equal_torchs_own_counter_whatever_is_frozen(
    frozen: frozenset[str],
    kind: str,
    make_pair: Callable[..., Any],
    samples: dict[str, list[Document]],
) -> None:
    model = make_pair(False).ours
    batch = pack(samples[kind], sum(len(d) for d in samples[kind]), side=6)
    try:
        for part, prefixes in PARTS.items():
            for name, parameter in model.named_parameters():
                if name.startswith(prefixes):
                    parameter.requires_grad_(part not in frozen)
        with FlopCounterMode(display=False) as counter:
            model(batch).backward()
    finally:
        model.requires_grad_(True)
    trained = Trained(**{part: part not in frozen for part in PARTS})
    expected = flops.step(model.config, batch.counts, trained)
    linear = expected.total - expected.text_attention - expected.tower_attention
    # a still image is counted as the published convolution over two equal frames
    stills = batch.patches.shape[0] * flops.patch_embedding(model.config.vision)
    linear -= stills / 2 * (1 + trained.tower)
    counted = counter.get_flop_counts()["Global"]
    products = (torch.ops.aten.mm, torch.ops.aten.addmm)
    assert sum(counted.get(op, 0) for op in products) == linear


def test_frozen_parts_count_two_when_gradients_pass_and_one_when_none_does() -> None:
    config = ModelConfig.named("4B")
    once = flops.forward(config, ONE)
    only_merger = flops.step(
        config, ONE, Trained(text=False, embedding=False, head=False, tower=False)
    )
    assert only_merger.text_linear == 2 * once.text_linear
    assert only_merger.text_attention == 3 * once.text_attention
    assert only_merger.tower_linear == once.tower_linear
    assert only_merger.tower_attention == once.tower_attention
    assert only_merger.mergers == 3 * once.mergers  # its norm is trained, too


def test_flops_add_up_by_part() -> None:
    two = Flops(head=1.0, mergers=2.0) + Flops(head=3.0)
    assert (two.head, two.mergers, two.total) == (4.0, 2.0, 6.0)
