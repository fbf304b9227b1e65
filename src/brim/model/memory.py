"""Device memory of a step, from sizes alone.

Weights, gradients and optimizer states are exact.  Activations are those that compiled blocks keep
for the backward pass at the default activation budget; a test compares them with what torch's
partitioner decides.  Not compiled, a step keeps more than this.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

import torch

from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.flops import Trained
from brim.model.loss import CHUNK_ROWS
from brim.model.parts import part_of
from brim.model.qwen3vl import Qwen3VL, Recompute

_FLOAT = 4
STATES = {"float32": (8.0, 4), "bfloat16": (4.0, 0), "8bit": (2.0 + 8 / 256, 0)}
"""Name of optimizer states → bytes a parameter of both moments, and of the master of a weight in
half precision."""


def state_bytes(states: str, dtype: torch.dtype) -> float:
    """Bytes of optimizer states a trained parameter of ``dtype``."""
    moments, master = STATES[states]
    if dtype is torch.float32:
        return moments
    return moments + (4 if dtype is torch.float16 else master)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """Bytes by what they hold; ``total`` is the peak to plan for."""

    weights: int
    gradients: int
    states: int
    text: int
    """Kept activations of the text blocks."""
    tower: int
    """Kept activations of the tower and its mergers."""
    loss: int
    """Logits of one chunk, and what the head's gradient takes."""
    passing: int
    """The largest buffers that live only inside one block's backward pass."""

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))


@dataclass(frozen=True, kw_only=True, slots=True)
class RowShape:
    """The largest row of a run; see :mod:`brim.model.batch`."""

    tokens: int
    vision_rows: int
    scored: int


def estimate(
    model: Qwen3VL,
    row: RowShape,
    *,
    trained: Trained | None = None,
    state_bytes: float = 4,
    recompute: Recompute | None = None,
    keep_all: bool = False,
) -> Memory:
    """For a model, on any device ("meta" too), in half precision.

    ``state_bytes``: optimizer states of one trained parameter, see :func:`state_bytes`.
    ``keep_all``: the activation budget is 1, so nothing of a block is made again.
    """
    trained, recompute = trained or Trained(), recompute or Recompute()
    config = model.config
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    learnt = [
        p
        for name, p in model.named_parameters()
        if ("lora_" in name if trained.lora_rank else getattr(trained, part_of(name)))
    ]
    flows = trained.text or trained.lora_rank > 0 or trained.vision or trained.embedding
    return Memory(
        weights=weights,
        gradients=sum(p.numel() * p.element_size() for p in learnt),
        states=int(sum(p.numel() for p in learnt) * state_bytes),
        text=_text(config.text, row.tokens, recompute, keep_all) if flows else 0,
        tower=_tower(config.vision, row.vision_rows, recompute.vision_blocks, trained, keep_all),
        loss=_loss(config, row.scored, trained),
        passing=_passing(config, row, trained),
    )


def recomputations(model: Qwen3VL, first: Recompute) -> Iterator[Recompute]:
    """``first`` and all that recompute more, the cheapest step by step; at last the inputs of all
    text blocks go to host memory too.

    Tower blocks first: a byte of theirs costs 1.9 kFLOP to make again, one of a text block 2.4 (4B)
    to 4 (8B).
    """
    text, vision = len(model.blocks), len(model.visual.blocks)
    if not any(p.requires_grad for p in model.visual.blocks.parameters()):
        vision = first.vision_blocks  # a frozen tower keeps nothing
    for blocks in range(first.vision_blocks, vision + 1):
        yield replace(first, vision_blocks=blocks)
    for blocks in range(first.text_blocks + 1, text + 1):
        yield replace(first, text_blocks=blocks, vision_blocks=vision)
    if not first.offload:
        yield Recompute(text_blocks=text, vision_blocks=vision, offload=True)


def text_block(text: TextConfig, keep_all: bool = False) -> int:
    """Bytes that one text block keeps of a token: its input, queries, keys and values before and
    after rotation, the attention's output and sums, the middle residual, gate and up; with
    ``keep_all`` also the outputs of its norms and of the activation function."""
    q, kv = text.heads * text.head_dim, text.kv_heads * text.head_dim
    inner = 2 * text.intermediate_size
    if text.experts:
        # a token is copied to each of its experts, its results wait for the router's gradient, and
        # there are three indices of 8 bytes
        inner = text.experts_per_token * (2 * text.hidden_size + 2 * text.expert_size + 12)
    half = 2 * text.hidden_size + (q + 2 * kv) + (q + kv) + q + inner
    if keep_all:
        wide = text.experts_per_token * text.expert_size or text.intermediate_size
        half += 2 * text.hidden_size + wide
    # inverse norms of the rows, the queries and the keys; the attention's sums
    floats = 2 + text.heads + text.kv_heads + text.heads
    return 2 * half + _FLOAT * floats


def vision_block(vision: VisionConfig, keep_all: bool = False) -> int:
    """Bytes that one tower block keeps of a patch.  Of queries, keys and values before the rotation
    only the values are needed, but they lie in one tensor, which stays."""
    half = 8 * vision.hidden_size + vision.intermediate_size
    if keep_all:
        half += 2 * vision.hidden_size + vision.intermediate_size
    return 2 * half + _FLOAT * (4 + vision.heads)


def _text(text: TextConfig, tokens: int, recompute: Recompute, keep_all: bool) -> int:
    again = min(recompute.text_blocks, text.layers)
    kept = text.layers - again
    # a recomputed block keeps its input (on the host: all but two on their way), and the one at
    # work all
    inputs = (min(again, 2) if recompute.offload else again) * 2 * text.hidden_size
    block = text_block(text, keep_all)
    return tokens * (kept * block + inputs + bool(inputs) * block)


def _tower(
    vision: VisionConfig, rows: int, recomputed: int, trained: Trained, keep_all: bool
) -> int:
    if not rows or not trained.vision:
        return 0
    # a merger keeps its input and its middle, of rows / merge² blocks of merge² · width
    mergers = (1 + len(vision.deepstack)) * 2 * 2 * vision.hidden_size
    if not trained.tower:
        return rows * mergers
    kept = vision.depth - min(recomputed, vision.depth)
    inputs = (vision.depth - kept) * 2 * vision.hidden_size
    block = vision_block(vision, keep_all)
    return rows * (kept * block + inputs + bool(inputs) * block + mergers)


def _loss(config: ModelConfig, scored: int, trained: Trained) -> int:
    text = config.text
    logits = min(scored, CHUNK_ROWS) * text.vocab_size * 2
    head = trained.embedding if config.tied else trained.head
    chunks = -(-scored // CHUNK_ROWS)
    gradient = text.vocab_size * text.hidden_size * (2 if chunks <= 1 else 6) if head else 0
    return logits + gradient + 3 * scored * text.hidden_size * 2


def _passing(config: ModelConfig, row: RowShape, trained: Trained) -> int:
    """Gradient of the widest activation, of its input, and float32 sums of the attention."""
    text, vision = config.text, config.vision
    wide = 2 * (3 * text.intermediate_size + 2 * text.hidden_size)
    attention = _FLOAT * (text.heads + 2 * text.kv_heads) * text.head_dim
    tower = 2 * (2 * vision.intermediate_size + 4 * vision.hidden_size)
    return max(row.tokens * max(wide, attention), row.vision_rows * tower * trained.tower)
