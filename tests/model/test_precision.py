from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch

from brim.errors import ConfigError, MissingExtra
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.precision import RECIPES, use_fp8
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import published, random_model
from brim.train.synthetic import Document, pack

CONFIG = ModelConfig(
    text=TextConfig(
        vocab_size=151_660, hidden_size=64, intermediate_size=96, layers=2, heads=4, kv_heads=2,
        head_dim=16, mrope_section=(3, 3, 2),
    ),
    vision=VisionConfig(
        depth=2, hidden_size=32, intermediate_size=48, heads=2, out_hidden_size=64,
        deepstack=(0,), positions=36,
    ),
    tied=True,
)  # fmt: skip


def fresh() -> Qwen3VL:
    # the published initialisation scaled up, so that blocks matter beside the residual
    model = random_model(CONFIG, dtype=torch.bfloat16)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model


def gradients(model: Qwen3VL, batch: Any) -> tuple[float, dict[str, torch.Tensor]]:
    loss = model(batch, 1 / batch.counts.scored)
    loss.backward()
    return loss.item(), {
        n: p.grad.float() for n, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize(("scope", "layers"), [("text", 8), ("both", 16)])
@pytest.mark.parametrize("recipe", RECIPES)
def test_fp8_layers_give_nearly_the_loss_and_gradients_of_bfloat16(
    recipe: str, scope: str, layers: int, samples: dict[str, list[Document]]
) -> None:
    pytest.importorskip("torchao")
    documents = samples["mixed"]
    length = -(-sum(len(d) for d in documents) // 16) * 16  # FP8 products need multiples of 16
    batch = pack(documents, length, bucket=16, side=6)
    plain, quick = fresh(), fresh()
    assert use_fp8(quick, recipe, scope) == layers
    expected, truth = gradients(plain, batch)
    loss, found = gradients(quick, batch)
    assert loss == pytest.approx(expected, rel=0.02)
    assert set(found) == set(truth)
    error = sum(float((found[n] - truth[n]).square().sum()) for n in truth) ** 0.5
    norm = sum(float(g.square().sum()) for g in truth.values()) ** 0.5
    # e4m3 keeps 4 bits: 3 % a product, and FP8 must really be in use
    assert 0.001 < error / norm < 0.2


def test_fp8_changes_no_name_and_leaves_head_mergers_and_tower_alone() -> None:
    pytest.importorskip("torchao")
    model = fresh()
    before = [name for name, _ in published(model)]
    use_fp8(model)
    assert [name for name, _ in published(model)] == before
    changed = {n for n, m in model.named_modules() if type(m).__name__ == "Float8Linear"}
    assert all(name.startswith("blocks.") for name in changed)


def test_an_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(ConfigError, match="tensorwise, rowwise, rowwise_with_gw_hp"):
        use_fp8(fresh(), "fast")


def test_without_torchao_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(MissingExtra, match=r"brim\[gpu\]"):
        use_fp8(fresh())


def test_fp8_of_a_mixture_of_experts_is_refused_with_the_name_of_the_field() -> None:
    text = replace(CONFIG.text, experts=4, experts_per_token=2, expert_size=32)
    model = random_model(replace(CONFIG, text=text), dtype=torch.bfloat16)
    with pytest.raises(ConfigError, match=r"model\.fp8 is 'tensorwise'.*experts"):
        use_fp8(model)
