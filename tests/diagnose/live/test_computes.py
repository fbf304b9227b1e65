"""Busy, but part of the work is not useful."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.live.records import (
    FORWARD,
    MAIN,
    SITE,
    TORCH,
    evidence,
    seen,
    stack,
    steps,
)

from brim.diagnose.live.computes import clues, pad_share

AGAIN = stack(
    "8", *FORWARD.frames[:2], (f"{TORCH}/utils/checkpoint.py", "backward"),
    (f"{TORCH}/autograd/graph.py", "_engine_run_backward"), MAIN,
)  # fmt: skip
COUNTED: dict[str, Any] = {"tokens": 1000, "counted_batches": 1, "longest": 500, "batches": 1}


def test_padding_takes_its_share_of_the_computing_only() -> None:
    samples = seen(("1", 0.05), ("3", 0.05))
    found = evidence(steps(10, pad_tokens=400, samples=samples, **COUNTED))
    (clue,) = clues(found, memory_free=None)
    assert clue.cause == "compute.padding"
    assert clue.seconds == pytest.approx(0.4 * 0.5)
    assert clue.facts == {"pad_share": pytest.approx(0.4)}
    assert clue.evidence[0].startswith("40.0 % of the tokens that reached the model are padding")
    assert "4,000 of 10,000 in 10 batches" in clue.evidence[0]


@pytest.mark.parametrize("fields", [{}, COUNTED, COUNTED | {"pad_tokens": 0}])
def test_full_rows_and_batches_without_tokens_give_no_clue(fields: dict[str, Any]) -> None:
    found = evidence(steps(10, samples=seen(("1", 0.1)), **fields))
    assert clues(found, memory_free=None) == []


def test_the_share_of_padding_is_absent_where_no_token_was_counted() -> None:
    assert pad_share(evidence(steps(3))) is None
    assert pad_share(evidence(steps(3, pad_tokens=0, **COUNTED))) == 0


@pytest.mark.parametrize(
    ("free", "named", "confidence"),
    [(0.6, True, "high"), (0.1, False, ""), (None, True, "medium")],
)
def test_recomputing_is_a_loss_only_where_memory_was_free(
    free: float | None, named: bool, confidence: str
) -> None:
    found = evidence(steps(10, samples=seen(("1", 0.075), ("8", 0.025))), AGAIN)
    clue = next(iter(clues(found, memory_free=free)), None)
    assert (clue is not None) is named
    if clue is not None:
        assert (clue.cause, clue.confidence) == ("compute.recompute", confidence)
        assert clue.seconds == pytest.approx(0.25)
        assert ("60.0 % of the memory was never used" in clue.evidence[0]) is (free == 0.6)


LLAMA = f"{SITE}/transformers/models/llama/modeling_llama.py"
SDPA = f"{SITE}/transformers/integrations/sdpa_attention.py"
CALLED = ((LLAMA, "LlamaAttention.forward"), *FORWARD.frames[1:])
EAGER = (LLAMA, "eager_attention_forward")
SOFTMAX = stack(
    "20", (f"{TORCH}/nn/functional.py", "softmax", 1, "ret = input.softmax(dim)"), EAGER, *CALLED
)
MASKED = stack("21", (*EAGER, 9, "attn_weights = attn_weights.masked_fill(mask, low)"), *CALLED)
PRODUCT = stack("22", (*EAGER, 7, "attn_weights = torch.matmul(query, key)"), *CALLED)
FUSED = stack(
    "23", (SDPA, "sdpa_attention_forward", 5, "out = F.scaled_dot_product_attention("), *CALLED
)
LOSS = stack("24", (f"{TORCH}/nn/functional.py", "log_softmax", 1, ""), *FORWARD.frames)
STACKS = (SOFTMAX, MASKED, PRODUCT, FUSED, LOSS)


def test_softmax_and_masks_over_scores_count_and_their_products_do_not() -> None:
    samples = seen(("1", 0.05), ("20", 0.02), ("21", 0.01), ("22", 0.02))
    (clue,) = clues(evidence(steps(10, samples=samples), *STACKS), memory_free=None)
    assert (clue.cause, clue.confidence) == ("compute.attention", "medium")
    assert clue.seconds == pytest.approx(0.3)
    assert "in forward passes alone, most of it in softmax" in clue.evidence[0]
    assert "called by eager_attention_forward" in clue.evidence[1]


@pytest.mark.parametrize("number", ["22", "23", "24"])
def test_products_fused_attention_and_the_losss_softmax_are_none(number: str) -> None:
    found = evidence(steps(10, samples=seen(("1", 0.05), (number, 0.05))), *STACKS)
    assert clues(found, memory_free=None) == []


def test_on_a_device_the_kernels_are_asked_and_not_the_stacks() -> None:
    lines = steps(10, samples=seen(("1", 0.05), ("20", 0.05)))
    assert clues(evidence(lines, *STACKS, device={"name": "H200"}), memory_free=None) == []


MIXTRAL = f"{SITE}/transformers/models/mixtral/modeling_mixtral.py"
OWN_LINE = ("/home/me/model.py", "Block.forward", 12, "y = self.experts[e](x[rows])")
MOE = stack("30", (MIXTRAL, "MixtralExperts.forward"), *FORWARD.frames[1:])
OWN_LOOP = stack("31", OWN_LINE, *FORWARD.frames[1:])


@pytest.mark.parametrize(("number", "line"), [("30", 30), ("31", 12)])
def test_blocks_of_experts_give_a_loop_seen_in_the_trace_its_place(number: str, line: int) -> None:
    lines = steps(10, samples=seen(("1", 0.06), (number, 0.04)))
    (clue,) = clues(evidence(lines, MOE, OWN_LOOP, device={"name": "H200"}), memory_free=None)
    assert (clue.cause, clue.seconds) == ("compute.expert-loop", 0.0)
    assert "40.0 % of its samples" in clue.evidence[0]
    assert clue.where is not None and clue.where.line == line
    assert clues(evidence(lines, MOE, OWN_LOOP), memory_free=None) == []  # no device, no trace


def test_words_that_only_contain_moe_are_no_experts() -> None:
    memory = stack("32", ("/home/me/model.py", "Memoed.forward", 3, "x = smoeren(x)"), MAIN)
    lines = steps(10, samples=seen(("1", 0.06), ("32", 0.04)))
    assert clues(evidence(lines, memory, device={"name": "H200"}), memory_free=None) == []
