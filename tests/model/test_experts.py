"""The mixture of experts against transformers' own, and its counts against the published ones."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.model.conftest import TEXT, VISION, Pair
from tests.model.test_equality import gap, row, scored_logits, step
from tests.model.test_step_reads_nothing import NoReads
from transformers import Qwen3VLMoeConfig, Qwen3VLMoeForConditionalGeneration

from brim.errors import InputError
from brim.model import flops
from brim.model.config import ModelConfig
from brim.model.experts import TextExperts
from brim.model.flops import Trained
from brim.model.kernels import compile_blocks
from brim.model.lora import add_lora, lora_layers
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import load, save
from brim.train.synthetic import Document, pack

EXPERTS = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    torch.manual_seed(0)
    text = {**TEXT, **EXPERTS, "hidden_size": 32, "tie_word_embeddings": False}
    config = Qwen3VLMoeConfig(
        text_config=text, vision_config={**VISION, "out_hidden_size": 32}, tie_word_embeddings=False
    )
    theirs = Qwen3VLMoeForConditionalGeneration(config)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    folder = tmp_path_factory.mktemp("experts")
    theirs.save_pretrained(folder)
    theirs.config._attn_implementation = "sdpa"
    return Pair(theirs, load(folder, dtype=torch.float32), folder)


@pytest.mark.parametrize("kind", ["text only", "several images", "mixed"])
def test_loss_and_every_gradient_equal_transformers_to_1e_5(
    kind: str, pair: Pair, samples: dict[str, list[Document]]
) -> None:
    pair.theirs.zero_grad()
    pair.ours.zero_grad()
    ours, theirs = step(pair, samples[kind], row(samples[kind], extra=7, bucket=16))
    assert abs(ours - theirs) / theirs < 1e-6
    expected = pair.their_gradients()
    # files hold (expert, in, out), transformers computes with (expert, out, in)
    found = {
        n: g.transpose(1, 2) if ".experts." in n else g for n, g in pair.our_gradients().items()
    }
    assert set(expected) == set(found)
    wrong = {n: gap(found[n], expected[n]) for n in expected if gap(found[n], expected[n]) > 1e-5}
    assert not wrong


def test_padding_and_other_documents_change_no_documents_logits(
    pair: Pair, samples: dict[str, list[Document]]
) -> None:
    documents = samples["mixed"]
    with torch.no_grad():
        alone = torch.cat([pair.ours.logits(row([d])) for d in documents])
        together = pair.ours.logits(row(documents, extra=5, bucket=32))
    assert gap(together, alone) < 2e-6


def test_a_saved_model_opens_in_transformers_with_the_same_logits(
    pair: Pair, samples: dict[str, list[Document]], tmp_path: Path
) -> None:
    save(pair.ours, tmp_path / "model")
    again = Qwen3VLMoeForConditionalGeneration.from_pretrained(tmp_path / "model").eval()
    batch = pair.their_batch(samples["mixed"])
    with torch.no_grad():
        found = scored_logits(again(**batch).logits, batch["labels"])
        expected = pair.ours.logits(row(samples["mixed"]))
    assert gap(found, expected) < 1e-5


def test_forward_and_backward_read_no_value(pair: Pair, samples: dict[str, list[Document]]) -> None:
    batch = row(samples["mixed"], extra=3)
    with NoReads():
        pair.ours(batch, 1 / batch.counts.scored).backward()


def test_compiled_blocks_see_the_experts_as_part_of_one_graph(
    pair: Pair, samples: dict[str, list[Document]]
) -> None:
    from torch._dynamo.testing import CompileCounter

    model, batch = load(pair.folder), row(samples["mixed"], extra=3)
    expected = model(batch).item()
    torch._dynamo.reset()
    counter = CompileCounter()
    compile_blocks(model, backend=counter)
    loss = model(batch)
    loss.backward()
    assert loss.item() == pytest.approx(expected, rel=0.01)
    # a text block, a vision block, the merger and a deepstack merger
    assert counter.frame_count == 4


def test_an_expert_without_tokens_gets_a_zero_gradient_and_harms_nothing() -> None:
    config = ModelConfig.from_hf(ModelConfig.named("30B-A3B").to_hf()).text
    from dataclasses import replace

    small = replace(config, hidden_size=32, experts=16, experts_per_token=2, expert_size=16)
    torch.manual_seed(0)
    experts = TextExperts(small)
    experts(torch.randn(3, 32)).square().sum().backward()
    busy = experts.gate_up.grad.abs().sum((1, 2)) > 0  # type: ignore[union-attr]
    assert 2 <= int(busy.sum()) <= 6
    assert all(torch.isfinite(p.grad).all() for p in experts.parameters())  # type: ignore[arg-type]


def test_the_published_model_has_31_071_million_parameters_and_5_46_gflop_a_token() -> None:
    config = ModelConfig.named("30B-A3B")
    with torch.device("meta"):
        model = Qwen3VL(config)
    assert sum(p.numel() for p in model.parameters()) / 1e6 == pytest.approx(31_070.8, abs=0.1)
    assert config.text.layers * flops.text_layer(config.text) / 1e9 == pytest.approx(5.46, abs=0.01)


def test_flops_of_a_frozen_mixture_with_adapters_count_those_of_the_attention_only(
    pair: Pair, samples: dict[str, list[Document]]
) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = load(pair.folder, dtype=torch.float32)
    add_lora(model, 4, 8.0)
    assert len(lora_layers(model)) == 2 * len(model.blocks)  # qkv and out
    documents = samples["text only"]
    batch = pack(documents, sum(len(d) for d in documents), side=6)
    frozen = Trained(
        text=False, embedding=False, head=False, merger=False, tower=False, lora_rank=4
    )
    expected = flops.step(model.config, batch.counts, frozen)
    with FlopCounterMode(display=False) as counter:
        model(batch).backward()
    counted = counter.get_flop_counts()["Global"]
    text, tokens = model.config.text, batch.counts.tokens
    # torch's counter knows no grouped product: two of them forward, two for their inputs' gradients
    grouped = tokens * text.layers * 2 * text.experts_per_token * 3 * text.hidden_size
    experts = 2 * grouped * text.expert_size
    products = sum(counted.get(op, 0) for op in (torch.ops.aten.mm, torch.ops.aten.addmm))
    known = counted.get(torch.ops.aten._grouped_mm, 0)
    assert products + (known or experts) == expected.total - expected.text_attention


@pytest.mark.parametrize(
    ("field", "value"),
    [("decoder_sparse_step", 2), ("mlp_only_layers", [0]), ("norm_topk_prob", False)],
)
def test_a_mixture_of_another_kind_is_refused_by_the_name_of_the_field(
    field: str, value: object
) -> None:
    raw = ModelConfig.named("30B-A3B").to_hf()
    raw["text_config"][field] = value
    with pytest.raises(InputError, match=field):
        ModelConfig.from_hf(raw)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_compiled_bfloat16_experts_are_near_float32_and_nothing_is_waited_for(
    pair: Pair, samples: dict[str, list[Document]]
) -> None:
    from brim.model.kernels import choose, installed, kernels

    batch = row(samples["mixed"], extra=3)
    expected = pair.ours(batch, 1 / batch.counts.scored).item()
    found = choose(torch.cuda.get_device_capability(), installed(), attention="varlen")
    picked = kernels(found)
    model = load(pair.folder, device="cuda", kernels=picked)
    compile_blocks(model)
    moved = batch.to("cuda")
    for _ in range(2):
        model(moved, 1 / batch.counts.scored).backward()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        loss = model(moved, 1 / batch.counts.scored)
        loss.backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.item() == pytest.approx(expected, rel=0.02)
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
