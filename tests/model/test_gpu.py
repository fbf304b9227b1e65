"""The whole model on a GPU with the kernels it would really use, against float32 on the host."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from brim.model.batch import PackedBatch
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.kernels import choose, compile_blocks, installed, kernels
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.step import TrainStep
from brim.train.synthetic import document, pack

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

# head sizes and ratios of the published models, few and narrow layers
CONFIG = ModelConfig(
    text=TextConfig(hidden_size=256, intermediate_size=768, layers=4, heads=4, kv_heads=2),
    vision=VisionConfig(
        depth=4, hidden_size=256, intermediate_size=512, heads=4, out_hidden_size=256,
        deepstack=(0, 1, 2),
    ),
    tied=True,
)  # fmt: skip


def row(seed: int) -> PackedBatch:
    rng = np.random.default_rng(seed)
    words = CONFIG.text.vocab_size
    grids: list[list[tuple[int, int]]] = [[(16, 24)], [], [(8, 8), (20, 12)], [(12, 4 + 4 * seed)]]
    documents = [document(rng, g, text=60, answer=40, vocabulary=words) for g in grids]
    documents.append(document(rng, [(8, 8)], text=9, answer=9, vocabulary=words, video=True))
    return pack(documents, 1024, bucket=64)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def on_gpu(*, compiled: bool, attention: str | None = None) -> Qwen3VL:
    picked = choose(
        torch.cuda.get_device_capability(), installed(), attention=attention, compile=compiled
    )
    model = random_model(CONFIG, dtype=torch.bfloat16, device="cpu").to("cuda")
    fresh = Qwen3VL(CONFIG, kernels(picked)).to(device="cuda", dtype=torch.bfloat16)
    fresh.load_state_dict(model.state_dict())
    if compiled:
        compile_blocks(fresh)
    return fresh


def gradients(model: Qwen3VL, batch: PackedBatch) -> tuple[float, dict[str, torch.Tensor]]:
    loss = model(batch, 1 / batch.counts.scored)
    loss.backward()
    return loss.item(), {n: p.grad.double().cpu() for n, p in model.named_parameters()}  # type: ignore[union-attr]


@pytest.mark.parametrize("attention", [None, "varlen", "efficient"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_loss_and_gradients_are_as_near_to_float32_as_bfloat16_allows(
    compiled: bool, attention: str | None
) -> None:
    exact = random_model(CONFIG, dtype=torch.bfloat16).float()
    expected, truth = gradients(exact, row(0))
    model = on_gpu(compiled=compiled, attention=attention)
    loss, found = gradients(model, row(0).to("cuda"))
    assert loss == pytest.approx(expected, rel=2e-3)
    error = sum(float((found[n] - truth[n]).square().sum()) for n in truth) ** 0.5
    norm = sum(float(g.square().sum()) for g in truth.values()) ** 0.5
    assert error / norm < 0.02


@pytest.mark.parametrize("masters", [True, False])
def test_a_step_waits_for_the_device_nowhere(masters: bool) -> None:
    model = on_gpu(compiled=True)
    optimizer = AdamW(
        decay_groups(model.named_parameters(), 0.1),
        masters=masters,
        state_dtype=torch.float32 if masters else torch.bfloat16,
    )
    step = TrainStep(model, optimizer, max_norm=1.0)
    rows = [row(seed).to("cuda") for seed in range(3)]
    for each in rows:
        step([each], 1e-4)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        outcome: Any = step(rows, 1e-4)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.isfinite(outcome.loss)


def test_other_patch_counts_compile_nothing_after_the_second_row() -> None:
    from torch._dynamo.utils import counters

    model = on_gpu(compiled=True)
    for seed in (0, 1):
        model(row(seed).to("cuda")).backward()
    before = counters["stats"]["unique_graphs"]
    for seed in (2, 3, 4):
        model(row(seed).to("cuda")).backward()
    assert counters["stats"]["unique_graphs"] == before
