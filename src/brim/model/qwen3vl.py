"""Qwen3-VL on packed rows: one row of tokens, one row of patches, no index made in the step.

Shapes are those of :mod:`brim.model.batch`; h is the language model's width, w the tower's.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from brim.data.pixels import normalize
from brim.model.attention import Attention, launch_bound, math_attention
from brim.model.batch import PackedBatch
from brim.model.config import ModelConfig, VisionConfig
from brim.model.layers import Merger, RMSNorm, Segments, TextBlock, VisionBlock
from brim.model.loss import RowLoss, linear_cross_entropy, torch_row_loss
from brim.model.offload import HostMemory
from brim.model.rows import add_rows, blend_rows, take_rows


@dataclass(frozen=True, kw_only=True, slots=True)
class Kernels:
    """The implementations a model runs with; :mod:`brim.model.kernels` picks them."""

    text_attention: Attention = math_attention
    vision_attention: Attention = math_attention
    row_loss: RowLoss = torch_row_loss


@dataclass(frozen=True, kw_only=True, slots=True)
class Recompute:
    """How many blocks forget their activations and run again in the backward pass."""

    text_blocks: int = 0
    vision_blocks: int = 0
    offload: bool = False
    """The inputs of such text blocks wait in host memory until the backward pass."""


class Rotary(nn.Module):
    """Angles of a position: frequencies theta^(-2i / size), always float32."""

    inverse: torch.Tensor

    def __init__(self, size: int, theta: float) -> None:
        super().__init__()
        self.size, self.theta = size, theta
        self.register_buffer("inverse", self._frequencies(), persistent=False)

    def _frequencies(self) -> torch.Tensor:
        powers = torch.arange(0, self.size, 2, dtype=torch.float32, device="cpu") / self.size
        return 1.0 / self.theta**powers

    def _apply(self, fn: Any, recurse: bool = True) -> Rotary:
        # a model in bfloat16 still needs these in float32, and one that was built on the meta
        # device needs their values: both are lost in the ordinary conversion
        super()._apply(fn, recurse)
        if self.inverse.device.type != "meta":
            self.inverse = self._frequencies().to(self.inverse.device)
        return self

    def forward(self, positions: torch.Tensor) -> torch.Tensor:
        return positions[..., None].float() * self.inverse


class PatchEmbedding(nn.Module):
    """The convolution with kernel = stride of the published model, as a product.

    A still image is the same frame twice, so its two temporal kernels are added first and the
    product has half the depth.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.channels, self.frame_values = config.channels, config.frame_values
        size = (config.channels, config.temporal_patch_size, config.patch_size, config.patch_size)
        self.weight = nn.Parameter(torch.empty(config.hidden_size, *size))
        self.bias = nn.Parameter(torch.zeros(config.hidden_size))
        nn.init.normal_(self.weight, std=0.02)

    def forward(self, patches: torch.Tensor, video_patches: torch.Tensor) -> torch.Tensor:
        embedded = []
        if patches.shape[0] or not video_patches.shape[0]:
            still = self.weight.float().sum(2).flatten(1).to(self.weight.dtype)
            embedded.append(F.linear(self._normalised(patches), still, self.bias))
        if video_patches.shape[0]:
            moving = self.weight.flatten(1)
            embedded.append(F.linear(self._normalised(video_patches), moving, self.bias))
        return torch.cat(embedded) if len(embedded) > 1 else embedded[0]

    def _normalised(self, pixels: torch.Tensor) -> torch.Tensor:
        """The reference's (x / 255 - 0.5) / 0.5, unless it was computed where they were cut."""
        if pixels.is_floating_point():
            return pixels.to(self.weight.dtype)
        return normalize(pixels, self.weight.dtype)


class VisionTower(nn.Module):
    def __init__(self, config: VisionConfig, attention: Attention) -> None:
        super().__init__()
        self.config = config
        self.static_patches = False
        """Whether compiled blocks are made anew for every number of vision rows."""
        self.patch_embedding = PatchEmbedding(config)
        self.positions = nn.Embedding(config.positions, config.hidden_size)
        self.rotary = Rotary(config.head_dim // 2, config.rope_theta)
        self.blocks = nn.ModuleList(VisionBlock(config, attention) for _ in range(config.depth))
        self.merger = Merger(config, norm_after_shuffle=False)
        self.deepstack = nn.ModuleList(
            Merger(config, norm_after_shuffle=True) for _ in config.deepstack
        )

    def forward(self, batch: PackedBatch, recompute: int = 0) -> list[torch.Tensor]:
        """Merged features, then those of each deepstack tap: (P / 4, h) each."""
        x = self.patch_embedding(batch.patches, batch.video_patches)
        x = F.pad(x, (0, 0, 0, batch.vision_length - x.shape[0]))
        blended = blend_rows(
            self.positions.weight, batch.vision_interp_indices, batch.vision_interp_weights
        )
        x = x + blended.to(x.dtype)
        at = self._segments(batch)
        self._mark(x)
        taps: list[torch.Tensor] = []
        for index, block in enumerate(self.blocks):
            x = _run(block, x, at, again=index < recompute)
            self._mark(x)
            if index in self.config.deepstack:
                taps.append(self.deepstack[len(taps)](x))
        return [self.merger(x), *taps]

    def _mark(self, *tensors: torch.Tensor) -> None:
        if not self.static_patches:
            _changes_length(*tensors)

    def _segments(self, batch: PackedBatch) -> Segments:
        angles = self.rotary(batch.vision_positions).flatten(1)
        longest = launch_bound(batch.counts.longest_frame)
        cos, sin = angles.cos(), angles.sin()
        _changes_length(batch.vision_cu_seqlens)
        self._mark(cos, sin)
        return Segments(cos, sin, batch.vision_cu_seqlens, longest)


class Qwen3VL(nn.Module):
    """The dense Qwen3-VL.  ``forward`` gives the loss; see :meth:`logits` for scored logits."""

    def __init__(self, config: ModelConfig, kernels: Kernels | None = None) -> None:
        super().__init__()
        kernels = kernels or Kernels()
        text = config.text
        self.config, self.kernels, self.recompute = config, kernels, Recompute()
        self.visual = VisionTower(config.vision, kernels.vision_attention)
        self.embedding = nn.Embedding(text.vocab_size, text.hidden_size)
        self.rotary = Rotary(text.head_dim, text.rope_theta)
        self.blocks = nn.ModuleList(
            TextBlock(text, kernels.text_attention) for _ in range(text.layers)
        )
        self.norm = RMSNorm(text.hidden_size, text.norm_eps)
        self.head = (
            None if config.tied else nn.Linear(text.hidden_size, text.vocab_size, bias=False)
        )

    def forward(self, batch: PackedBatch, scale: float = 1.0) -> torch.Tensor:
        """``scale`` · Σ cross-entropy over the scored rows: a float32 scalar."""
        return linear_cross_entropy(
            self.scored_states(batch),
            self.head_weight,
            batch.labels,
            scale=scale,
            row_loss=self.kernels.row_loss,
        )

    def logits(self, batch: PackedBatch) -> torch.Tensor:
        """(S, V) logits of the scored rows."""
        return self.scored_states(batch) @ self.head_weight.t()

    @property
    def head_weight(self) -> torch.Tensor:
        weight: torch.Tensor = (self.embedding if self.head is None else self.head).weight
        return weight

    def scored_states(self, batch: PackedBatch) -> torch.Tensor:
        """(S, h): normalised hidden states of the rows whose next token is a label."""
        x = self.embedding(batch.input_ids)
        taps: list[torch.Tensor] = []
        if batch.vision_length:
            tokens = batch.splice_rows.shape[0]
            merged, *taps = self.visual(batch, self.recompute.vision_blocks)
            x = x.index_copy(0, batch.splice_rows, merged[:tokens])
            taps = [tap[:tokens] for tap in taps]
        at = self._segments(batch)
        store = HostMemory() if self.recompute.offload else None
        for index, block in enumerate(self.blocks):
            again = index < self.recompute.text_blocks
            x = _run(block, x, at, again=again, inputs=store if again else None)
            if index < len(taps):
                x = add_rows(x, batch.splice_rows, taps[index])
        return self.norm(take_rows(x, batch.scored_rows))

    def _segments(self, batch: PackedBatch) -> Segments:
        angles = mrope(self.rotary(batch.position_ids), self.config.text.mrope_section)
        longest = launch_bound(batch.counts.longest_document)
        _changes_length(batch.cu_seqlens)
        return Segments(angles.cos(), angles.sin(), batch.cu_seqlens, longest)


def mrope(angles: torch.Tensor, sections: tuple[int, int, int]) -> torch.Tensor:
    """(3, L, d / 2) angles of T, H, W to the interleaved (L, d / 2): of every three frequencies the
    second is H's and the third W's, as far as their sections reach; the others are T's."""
    mixed = angles[0].clone()
    for axis in (1, 2):
        of_axis = slice(axis, 3 * sections[axis], 3)
        mixed[:, of_axis] = angles[axis, :, of_axis]
    return mixed


def _changes_length(*tensors: torch.Tensor) -> None:
    """Tell the compiler that these have another length in every row, before it sees the first."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


def _run(
    block: nn.Module,
    x: torch.Tensor,
    at: Segments,
    *,
    again: bool,
    inputs: HostMemory | None = None,
) -> torch.Tensor:
    """``again``: the block forgets its activations; its input may wait in ``inputs``."""
    if again and torch.is_grad_enabled():
        with inputs or nullcontext():
            # no block draws random numbers, so their state need not be kept (that would read it)
            return checkpoint(block, x, at, use_reentrant=False, preserve_rng_state=False)
    return block(x, at)
