from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch.utils.flop_counter import FlopCounterMode

from brim.errors import InputError
from brim.model import flops
from brim.model.flops import Trained
from brim.model.lora import (
    TARGETS,
    adapter_tensors,
    add_lora,
    load_adapter,
    lora_layers,
    merge,
    save_adapter,
)
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import load, published
from brim.train.synthetic import Document, pack

Make = Callable[..., Any]
FROZEN = Trained(text=False, embedding=False, head=False, merger=False, tower=False, lora_rank=4)


def row(documents: list[Document]) -> Any:
    return pack(documents, sum(len(d) for d in documents), side=6)


@pytest.fixture
def theirs(make_pair: Make, tmp_path: Path) -> Any:
    """PEFT on the transformers model, both matrices random."""
    from transformers import Qwen3VLForConditionalGeneration

    base = Qwen3VLForConditionalGeneration.from_pretrained(make_pair(False).folder)
    model = get_peft_model(
        base,
        LoraConfig(r=4, lora_alpha=6, target_modules=list(TARGETS), lora_dropout=0.0),
    )
    torch.manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.normal_(0, 0.3)
    model.save_pretrained(tmp_path / "adapter")
    return model


def adapted(make_pair: Make) -> Qwen3VL:
    model = load(make_pair(False).folder, dtype=torch.float32)
    add_lora(model, 4, 6.0)
    return model


def test_an_adapter_from_peft_gives_its_loss_and_gradients_to_1e_5(
    theirs: Any, make_pair: Make, samples: dict[str, list[Document]], tmp_path: Path
) -> None:
    documents, ours = samples["mixed"], adapted(make_pair)
    load_adapter(ours, tmp_path / "adapter")
    batch = row(documents)
    loss = ours(batch, 1 / batch.counts.scored)
    loss.backward()
    reference = theirs(**make_pair(False).their_batch(documents)).loss
    reference.backward()
    assert loss.item() == pytest.approx(reference.item(), rel=1e-6)
    expected = {
        n.replace(".default", ""): p.grad for n, p in theirs.named_parameters() if p.requires_grad
    }
    grads = {}
    for layer in lora_layers(ours):
        assert layer.weight.grad is None
        a, b = layer.lora_a.grad, layer.lora_b.grad
        assert a is not None and b is not None
        for part, rows in zip(layer.parts, a.split(layer.rank), strict=True):
            grads[f"base_model.model.{part.name}.lora_A.weight"] = rows
            grads[f"base_model.model.{part.name}.lora_B.weight"] = b[part.start : part.stop]
    assert set(grads) == set(expected)
    for name, truth in expected.items():
        assert (grads[name] - truth).norm() < 1e-5 * truth.norm(), name


def test_a_saved_adapter_opens_in_peft_with_the_same_logits(
    make_pair: Make, samples: dict[str, list[Document]], tmp_path: Path
) -> None:
    from transformers import Qwen3VLForConditionalGeneration

    ours, documents = adapted(make_pair), samples["several images"]
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for layer in lora_layers(ours):
            layer.lora_b.normal_(0, 0.3, generator=generator)
    save_adapter(ours, tmp_path / "out", base="tiny")
    base = Qwen3VLForConditionalGeneration.from_pretrained(make_pair(False).folder)
    theirs = PeftModel.from_pretrained(base, tmp_path / "out")
    inputs = make_pair(False).their_batch(documents)
    with torch.no_grad():
        logits = theirs(**inputs).logits[:, :-1][inputs["labels"][:, 1:] != -100]
        found = ours.logits(row(documents))
    assert (found - logits).norm() < 1e-5 * logits.norm()


def test_a_new_adapter_changes_nothing_and_trains_only_itself(
    make_pair: Make, samples: dict[str, list[Document]]
) -> None:
    ours, plain = adapted(make_pair), make_pair(False).ours
    batch = row(samples["mixed"])
    with torch.no_grad():
        assert torch.allclose(ours.logits(batch), plain.logits(batch), atol=1e-6)
    trainable = {n for n, p in ours.named_parameters() if p.requires_grad}
    assert trainable == {n for n, _ in ours.named_parameters() if "lora_" in n}
    assert len(adapter_tensors(ours)) == 2 * 7 * 4


def test_merged_adapters_give_the_same_logits_from_plain_matrices(
    make_pair: Make, samples: dict[str, list[Document]], theirs: Any, tmp_path: Path
) -> None:
    ours, batch = adapted(make_pair), row(samples["one image"])
    load_adapter(ours, tmp_path / "adapter")
    with torch.no_grad():
        before = ours.logits(batch)
        merge(ours)
        after = ours.logits(batch)
    assert (after - before).norm() < 1e-5 * before.norm()
    assert all(not layer.lora_b.any() for layer in lora_layers(ours))
    assert len(dict(published(ours))) == len(dict(published(make_pair(False).ours)))


def test_an_adapter_of_other_layers_or_another_rank_is_refused(
    make_pair: Make, tmp_path: Path
) -> None:
    ours = adapted(make_pair)
    save_adapter(ours, tmp_path / "four", base="tiny")
    other = load(make_pair(False).folder, dtype=torch.float32)
    add_lora(other, 8, 8.0)
    with pytest.raises(InputError, match=r"has the shape \(4, 24\)"):
        load_adapter(other, tmp_path / "four")


@pytest.mark.parametrize("kind", ["text only", "video"])
def test_linear_flops_of_adapters_equal_torchs_own_counter(
    kind: str, make_pair: Make, samples: dict[str, list[Document]]
) -> None:
    ours, batch = adapted(make_pair), row(samples[kind])
    with FlopCounterMode(display=False) as counter:
        ours(batch).backward()
    expected = flops.step(ours.config, batch.counts, FROZEN)
    counted = counter.get_flop_counts()["Global"]
    products = (torch.ops.aten.mm, torch.ops.aten.addmm)
    linear = expected.total - expected.text_attention - expected.tower_attention
    assert sum(counted.get(op, 0) for op in products) == linear


def test_recomputed_and_plain_steps_of_adapters_agree(
    make_pair: Make, samples: dict[str, list[Document]]
) -> None:
    from brim.model.qwen3vl import Recompute

    grads = []
    for blocks in (0, 4):
        ours = adapted(make_pair)
        ours.recompute = Recompute(text_blocks=blocks)
        ours(row(samples["mixed"])).backward()
        grads.append([layer.lora_b.grad for layer in lora_layers(ours)])
    for a, b in zip(*grads, strict=True):
        assert a is not None and b is not None and torch.equal(a, b)
