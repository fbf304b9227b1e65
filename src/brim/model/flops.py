"""Useful FLOPs of a step, strictly: what the mathematics of the model needs and no more.

A multiply-add counts 2.  Counted: linear layers, the causal attention as half of the square, the
tower's attention inside a frame, mergers on merged tokens, the head on scored rows.  Not counted:
look-ups, norms, activations, padding, and anything computed twice (recomputed blocks, the flash
kernel's backward).  A still image counts as the published convolution over its doubled frame.

A part's backward pass adds one forward for the gradient of its weights, if they are trained, and
one for the gradient of its input, if anything trained lies before it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from brim.model.batch import MERGE, RowCounts
from brim.model.config import ModelConfig, TextConfig, VisionConfig


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    """What a run trains.  ``embedding`` covers a tied head."""

    text: bool = True
    embedding: bool = True
    head: bool = True
    merger: bool = True
    """The merger and the deepstack mergers."""
    tower: bool = True
    lora_rank: int = 0
    """Adapters on every linear layer of the text blocks; ``text`` is False then."""

    @property
    def vision(self) -> bool:
        return self.tower or self.merger


@dataclass(frozen=True, kw_only=True, slots=True)
class Flops:
    """FLOPs by part; ``total`` is what an MFU counts."""

    text_linear: float = 0.0
    text_attention: float = 0.0
    head: float = 0.0
    lora: float = 0.0
    patch_embedding: float = 0.0
    tower_linear: float = 0.0
    tower_attention: float = 0.0
    mergers: float = 0.0

    @property
    def total(self) -> float:
        return sum(getattr(self, f.name) for f in fields(self))

    def __add__(self, other: Flops) -> Flops:
        return Flops(
            **{f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        )


def forward(config: ModelConfig, counts: RowCounts, trained: Trained | None = None) -> Flops:
    """One forward pass."""
    text, vision = config.text, config.vision
    merged = counts.patches / MERGE**2
    rank = trained.lora_rank if trained else 0
    return Flops(
        text_linear=counts.tokens * text.layers * text_layer(text),
        text_attention=text.layers * attention_square(text) * counts.token_squares / 2,
        head=counts.scored * 2 * text.vocab_size * text.hidden_size,
        lora=counts.tokens * text.layers * 2 * rank * sum(_adapted(text)),
        patch_embedding=counts.patches * patch_embedding(vision),
        tower_linear=counts.patches * vision.depth * tower_block(vision),
        tower_attention=counts.patch_squares * vision.depth * 4 * vision.hidden_size,
        mergers=merged * (1 + len(vision.deepstack)) * merger(vision),
    )


def step(config: ModelConfig, counts: RowCounts, trained: Trained | None = None) -> Flops:
    """Forward and backward of one row."""
    trained = trained or Trained()
    once = forward(config, counts, trained)
    adapted = trained.text or trained.lora_rank > 0
    before_text = trained.vision or trained.embedding
    flows = adapted or before_text
    first = counts.tokens * 2 * config.text.hidden_size * config.text.qkv_size
    return Flops(
        text_linear=once.text_linear * (1 + trained.text + flows)
        # adapters of the first layer need no gradient of its input, unless something before it
        # does (a trained layer needs it for its own first norm)
        - (first if adapted and not trained.text and not before_text else 0),
        text_attention=once.text_attention * (3 if flows else 1),
        head=once.head * (1 + (trained.embedding if config.tied else trained.head) + flows),
        lora=once.lora * 3
        - (
            0
            if before_text or trained.text
            else counts.tokens * 6 * trained.lora_rank * config.text.hidden_size
        ),
        patch_embedding=once.patch_embedding * (1 + trained.tower),
        tower_linear=once.tower_linear * (3 if trained.tower else 1),
        tower_attention=once.tower_attention * (3 if trained.tower else 1),
        # a merger begins with a norm: training it needs the gradient of the product's input
        mergers=once.mergers * (1 + trained.merger + trained.vision),
    )


def text_layer(text: TextConfig) -> int:
    """Linear FLOPs of one token in one layer, forward: 2 (2 h n_h d + 2 h n_kv d + 3 h I); with
    experts I is the width of those that a token takes, and the router adds 2 h E."""
    attention = 2 * text.hidden_size * (text.heads + text.kv_heads) * text.head_dim
    inner = text.experts_per_token * text.expert_size if text.experts else text.intermediate_size
    return 2 * (attention + text.hidden_size * (3 * inner + text.experts))


def attention_square(text: TextConfig) -> int:
    """FLOPs of one layer per pair of tokens, forward; a causal document has length² / 2 pairs."""
    return 4 * text.heads * text.head_dim


def tower_block(vision: VisionConfig) -> int:
    """Linear FLOPs of one patch in one block, forward: 2 (4 w² + 2 w I)."""
    return 2 * (4 * vision.hidden_size**2 + 2 * vision.hidden_size * vision.intermediate_size)


def patch_embedding(vision: VisionConfig) -> int:
    return 2 * vision.frame_values * vision.temporal_patch_size * vision.hidden_size


def merger(vision: VisionConfig) -> int:
    """One merger on one merged token, forward: 2 (m² + m out), m = 4 w."""
    return 2 * vision.merged_size * (vision.merged_size + vision.out_hidden_size)


def _adapted(text: TextConfig) -> tuple[int, ...]:
    """in + out of every linear layer that has an adapter: q, k, v, o; without experts gate, up and
    down too."""
    h, inner, d = text.hidden_size, text.intermediate_size, text.head_dim
    q, kv = text.heads * d, text.kv_heads * d
    if text.experts:  # they have none
        return (h + q, h + kv, h + kv, q + h)
    return (h + q, h + kv, h + kv, q + h, h + inner, h + inner, inner + h)
