from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from brim.model.attention import _fa4_forward  # noqa: F401  (registers the operator)
from brim.model.batch import TENSORS
from brim.model.config import ModelConfig
from brim.model.flops import Trained
from brim.model.kernels import ACTIVATION_BUDGET, compile_blocks
from brim.model.layers import Segments, TextBlock, VisionBlock
from brim.model.memory import (
    RowShape,
    estimate,
    recomputations,
    state_bytes,
    text_block,
    vision_block,
)
from brim.model.qwen3vl import Kernels, Qwen3VL, Recompute
from brim.model.weights import random_model
from brim.train.synthetic import Tokens, document, pack

ROWS = 512


def opaque(q: Any, k: Any, v: Any, cu_seqlens: Any, longest: int, causal: bool) -> Any:
    """The attention as the compiler sees it: an operator with an output and its sums."""
    return torch.ops.brim.fa4_forward(q, k, v, cu_seqlens, longest, causal)[0]


def kept_bytes(
    block: nn.Module, width: int, head_dim: int, budget: float = ACTIVATION_BUDGET
) -> float:
    """Bytes a row that torch's partitioner keeps of a compiled block, its input included."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    found: dict[str, int] = {}

    class Seen(Exception):
        pass

    def forward(graph: torch.fx.GraphModule, _inputs: Any) -> Any:
        (output,) = (n for n in graph.graph.nodes if n.op == "output")
        values = {n.name: n.meta["val"] for n in output.args[0][1:] if n is not None}
        inner = {n.name for n in graph.graph.nodes if n.op == "placeholder"}
        rows = {k: v for k, v in values.items() if isinstance(v, torch.Tensor) and ROWS in v.shape}
        # rotary tables belong to the whole tower, and an alias to what it repeats
        tables = {k for k, v in rows.items() if k in inner and v.dtype is torch.float32}
        views = {k for k in rows if k.startswith("view") and "alias" in " ".join(rows)}
        for name, value in rows.items():
            if name not in tables | views:
                found[name] = value.numel() * value.element_size()
        raise Seen

    compiler: Callable[..., Any] = aot_autograd(
        fw_compiler=forward,
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    x = torch.randn(ROWS, width, dtype=torch.bfloat16, requires_grad=True)
    table = torch.randn(ROWS, head_dim // 2)
    at = Segments(table, table.clone(), torch.tensor([0, ROWS], dtype=torch.int32), ROWS)
    compiled = torch.compile(block.bfloat16(), backend=compiler, fullgraph=True)
    with (
        torch._functorch.config.patch(activation_memory_budget=budget),
        pytest.raises(Exception, match="Seen"),
    ):
        compiled(x, at)
    return sum(found.values()) / ROWS


@pytest.mark.parametrize("budget", [ACTIVATION_BUDGET, 1.0])
@pytest.mark.parametrize("size", ["4B", "8B"])
def test_a_text_block_keeps_what_torchs_partitioner_keeps(size: str, budget: float) -> None:
    # the widths' ratios decide, so a quarter of them is enough
    full = ModelConfig.named(size).text
    text = replace(
        full,
        hidden_size=full.hidden_size // 4,
        intermediate_size=full.intermediate_size // 4,
        heads=full.heads // 4,
        kv_heads=2,
    )
    found = kept_bytes(TextBlock(text, opaque), text.hidden_size, text.head_dim, budget)
    assert found == pytest.approx(text_block(text, keep_all=budget == 1), rel=0.02)


@pytest.mark.parametrize("budget", [ACTIVATION_BUDGET, 1.0])
@pytest.mark.parametrize("size", ["4B", "8B"])
def test_a_tower_block_keeps_what_torchs_partitioner_keeps(size: str, budget: float) -> None:
    vision = ModelConfig.named(size).vision
    found = kept_bytes(VisionBlock(vision, opaque), vision.hidden_size, vision.head_dim, budget)
    # it keeps the values only, and with them the memory of the queries and keys beside them
    beside = 2 * 2 * vision.hidden_size
    assert found + beside == pytest.approx(vision_block(vision, keep_all=budget == 1), rel=0.02)


def meta(size: str) -> Qwen3VL:
    with torch.device("meta"):
        return Qwen3VL(ModelConfig.named(size)).bfloat16()


ROW = RowShape(tokens=8192, vision_rows=26_000, scored=1000)


def test_weights_gradients_and_states_of_8b_take_70_gb_with_bfloat16_moments() -> None:
    found = estimate(meta("8B"), ROW)
    parameters = 8_767_123_696
    assert found.weights == found.gradients == 2 * parameters
    assert found.states == 4 * parameters
    masters = estimate(meta("8B"), ROW, state_bytes=12)
    assert masters.total - found.total == 8 * parameters


def test_frozen_parts_have_neither_gradients_nor_states_nor_activations() -> None:
    model = meta("4B")
    frozen = estimate(model, ROW, trained=Trained(tower=False, merger=False))
    assert frozen.tower == 0
    tower = sum(p.numel() for p in model.visual.parameters())
    everything = estimate(model, ROW)
    assert everything.gradients - frozen.gradients == 2 * tower
    nothing_before = Trained(text=False, embedding=False, merger=False, tower=False, head=True)
    assert estimate(meta("8B"), ROW, trained=nothing_before).text == 0


def test_recomputing_every_block_keeps_their_inputs_and_one_block() -> None:
    model = meta("4B")
    text = model.config.text
    found = estimate(model, ROW, recompute=Recompute(text_blocks=36))
    assert found.text == ROW.tokens * (36 * 2 * text.hidden_size + text_block(text))
    assert estimate(model, ROW, recompute=Recompute(text_blocks=99)).text == found.text


def test_recomputation_grows_block_by_block_the_towers_first_and_takes_less_and_less() -> None:
    model = meta("8B")
    choices = list(recomputations(model, Recompute()))
    blocks = [(r.vision_blocks, r.text_blocks, r.offload) for r in choices]
    tower = [(v, 0, False) for v in range(28)]
    text = [(27, t, False) for t in range(1, 37)]
    assert blocks == [*tower, *text, (27, 36, True)]
    totals = [estimate(model, ROW, recompute=r).total for r in choices]
    # the first block of each tower brings nothing: it is the one at work that takes its place
    bumps = [i for i in range(1, len(totals)) if totals[i] > totals[i - 1]]
    assert bumps == [1, 28]
    asked = Recompute(text_blocks=5, vision_blocks=2)
    assert next(iter(recomputations(model, asked))) == asked


def test_the_tower_of_a_run_that_freezes_it_is_never_recomputed() -> None:
    model = meta("2B")
    model.visual.requires_grad_(False)
    assert {r.vision_blocks for r in recomputations(model, Recompute())} == {0}


@pytest.mark.parametrize(
    ("states", "dtype", "expected"),
    [
        ("float32", torch.bfloat16, 12),  # two moments and a master
        ("float32", torch.float32, 8),
        ("bfloat16", torch.bfloat16, 4),
        ("bfloat16", torch.float16, 8),  # float16 always keeps a master
        ("8bit", torch.bfloat16, 2.03125),
    ],
)
def test_states_take_what_the_optimizer_allocates(
    states: str, dtype: torch.dtype, expected: float
) -> None:
    from brim.train.adamw import AdamW

    assert state_bytes(states, dtype) == expected
    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "8bit": torch.uint8}
    weight = torch.nn.Parameter(torch.zeros(64, 512, dtype=dtype))
    masters = states == "float32" or dtype is torch.float16
    optimizer = AdamW([weight], masters=masters, state_dtype=kinds[states])
    held = sum(t.numel() * t.element_size() for t in optimizer.state[weight].values())
    assert held == expected * weight.numel()


def test_a_text_only_row_needs_nothing_of_the_tower() -> None:
    assert estimate(meta("2B"), replace(ROW, vision_rows=0)).tower == 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_peak_of_a_step_is_within_ten_percent() -> None:
    import itertools

    from brim.model.kernels import choose, compile_blocks, installed, kernels
    from brim.train.adamw import AdamW, decay_groups
    from brim.train.step import TrainStep
    from brim.train.synthetic import photographs

    picked = choose(torch.cuda.get_device_capability(), installed())
    config = ModelConfig.named("2B")
    model = random_model(config, device="cuda", kernels=kernels(picked))
    compile_blocks(model)
    groups = decay_groups(model.named_parameters(), 0.0)
    step = TrainStep(model, AdamW(groups, masters=False, state_dtype=torch.bfloat16))
    rows = [row.to("cuda") for row in itertools.islice(photographs(config, 8192), 2)]
    for row in rows:
        step([row], 1e-5)
    torch.cuda.reset_peak_memory_stats()
    step([rows[0]], 1e-5)
    row = rows[0]
    shape = RowShape(tokens=8192, vision_rows=row.vision_length, scored=row.counts.scored)
    assert estimate(model, shape).total == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.1)


def stand_in(q: Any, k: Any, v: Any, cu_seqlens: Any, longest: int, causal: bool) -> Any:
    """An attention that keeps what the flash kernels keep and computes something on a CPU."""
    return torch.ops.brim_tests.attention(q, k, v, cu_seqlens)[0]


@torch.library.custom_op("brim_tests::attention", mutates_args=())
def _attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.clone(), q.new_zeros((q.shape[1], q.shape[0]), dtype=torch.float32)


@_attention.register_fake
def _(q: Any, k: Any, v: Any, cu_seqlens: Any) -> Any:
    return torch.empty_like(q), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@torch.library.custom_op("brim_tests::attention_backward", mutates_args=())
def _gradients(
    grad: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor,
    sums: torch.Tensor, cu_seqlens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    return grad.clone(), torch.zeros_like(k), torch.zeros_like(v)


@_gradients.register_fake
def _(grad: Any, q: Any, k: Any, v: Any, out: Any, sums: Any, cu_seqlens: Any) -> Any:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _keep(ctx: Any, inputs: Any, output: Any) -> None:
    ctx.save_for_backward(*inputs[:3], *output, inputs[3])


def _backward(ctx: Any, grad: torch.Tensor, _sums: Any) -> Any:
    return *torch.ops.brim_tests.attention_backward(grad, *ctx.saved_tensors), None


_attention.register_autograd(_backward, setup_context=_keep)


def saved_bytes(model: Qwen3VL, batch: Any) -> int:
    """Bytes that autograd holds between the forward and the backward pass, each storage once,
    counted where it is saved: no parameters, and nothing of the batch."""
    known = {p.untyped_storage().data_ptr() for p in model.parameters()}
    known |= {getattr(batch, n).untyped_storage().data_ptr() for n in TENSORS}
    held: dict[int, torch.UntypedStorage] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            held[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(batch)
    return sum(storage.nbytes() for storage in held.values())


@pytest.mark.parametrize("recompute", [Recompute(), Recompute(text_blocks=2, vision_blocks=1)])
def test_a_whole_step_keeps_what_the_estimate_says_to_two_percent(recompute: Recompute) -> None:
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd
    from torch._functorch.partitioners import min_cut_rematerialization_partition
    from torch._inductor.decomposition import select_decomp_table

    full = ModelConfig.named("4B")
    text = replace(
        full.text, vocab_size=1024, hidden_size=320, intermediate_size=1216, layers=3, heads=4,
        kv_heads=1,
    )  # fmt: skip
    vision = replace(full.vision, depth=3, deepstack=(1,), out_hidden_size=320)
    config = replace(full, text=text, vision=vision)
    chosen = Kernels(text_attention=stand_in, vision_attention=stand_in)
    model = random_model(config, kernels=chosen)
    tokens = Tokens(1000, 1001, 1002, 1003)
    rng = np.random.default_rng(0)
    documents = [
        document(rng, [(16, 16)], text=100, answer=20, vocabulary=1000, tokens=tokens)
        for _ in range(4)
    ]
    batch = pack(documents, 1024, bucket=256)
    backend = aot_autograd(
        fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        bw_compiler=lambda graph, _: make_boxed_func(graph.forward),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    with torch._functorch.config.patch(activation_memory_budget=ACTIVATION_BUDGET):
        compile_blocks(model, backend=backend)
        model(batch)  # compiled before anything is counted
        model.recompute = recompute
        found = saved_bytes(model, batch)
    shape = RowShape(tokens=1024, vision_rows=batch.vision_length, scored=batch.counts.scored)
    planned = estimate(model, shape, recompute=recompute)
    again = bool(recompute.text_blocks) * 1024 * text_block(text)
    again += bool(recompute.vision_blocks) * batch.vision_length * vision_block(vision)
    head = 2 * text.vocab_size * text.hidden_size  # its gradient is made in the forward pass
    expected = planned.text + planned.tower - again + head
    assert found == pytest.approx(expected, rel=0.02)
