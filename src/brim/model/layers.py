"""The blocks of both towers, on packed rows.

Shapes: T rows (tokens or patches), h hidden size, H query heads, K key heads, d head size.
Queries, keys and values come from one matrix, and so do the gate and the up projection: one large
product in place of three (or two) small ones, and one instead of three in the input's gradient.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from brim.model.attention import Attention
from brim.model.config import TextConfig, VisionConfig
from brim.model.experts import TextExperts
from brim.model.swiglu import swiglu_down


@dataclass(frozen=True, slots=True)
class Segments:
    """What attention needs of a row: rotary tables (T, d / 2) float32 and the boundaries."""

    cos: torch.Tensor
    sin: torch.Tensor
    cu_seqlens: torch.Tensor
    longest: int


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, self.weight.shape, self.weight, self.eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of (T, H, d) by tables (T, d / 2), halves paired, computed in float32."""
    first, second = x.float().chunk(2, dim=-1)
    cos, sin = cos[:, None], sin[:, None]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1).to(x.dtype)


class TextAttention(nn.Module):
    def __init__(self, config: TextConfig, attention: Attention) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = config.heads, config.kv_heads, config.head_dim
        self.attention = attention
        self.qkv = nn.Linear(config.hidden_size, config.qkv_size, bias=False)
        self.q_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.k_norm = RMSNorm(config.head_dim, config.norm_eps)
        self.out = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, at: Segments) -> torch.Tensor:
        qkv = self.qkv(x).unflatten(-1, (-1, self.head_dim))
        q, k, v = qkv.split((self.heads, self.kv_heads, self.kv_heads), dim=1)
        q = rotate(self.q_norm(q), at.cos, at.sin)
        k = rotate(self.k_norm(k), at.cos, at.sin)
        mixed = self.attention(q, k, v, at.cu_seqlens, at.longest, True)
        return self.out(mixed.flatten(1))


class TextMLP(nn.Module):
    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.gate_up = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return swiglu_down(self.gate_up(x), self.down)


class TextBlock(nn.Module):
    def __init__(self, config: TextConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.attention = TextAttention(config, attention)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = TextExperts(config) if config.experts else TextMLP(config)

    def forward(self, x: torch.Tensor, at: Segments) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), at)
        return x + self.mlp(self.mlp_norm(x))


class VisionAttention(nn.Module):
    def __init__(self, config: VisionConfig, attention: Attention) -> None:
        super().__init__()
        self.heads, self.head_dim = config.heads, config.head_dim
        self.attention = attention
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x: torch.Tensor, at: Segments) -> torch.Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, self.head_dim)).unbind(1)
        q, k = rotate(q, at.cos, at.sin), rotate(k, at.cos, at.sin)
        mixed = self.attention(q, k, v, at.cu_seqlens, at.longest, False)
        return self.out(mixed.flatten(1))


class VisionBlock(nn.Module):
    def __init__(self, config: VisionConfig, attention: Attention) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.attention = VisionAttention(config, attention)
        self.mlp_norm = nn.LayerNorm(config.hidden_size, config.norm_eps)
        self.up = nn.Linear(config.hidden_size, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x: torch.Tensor, at: Segments) -> torch.Tensor:
        x = x + self.attention(self.attention_norm(x), at)
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class Merger(nn.Module):
    """Four patches to one visual token; deepstack mergers normalise after the 2 × 2 shuffle."""

    def __init__(self, config: VisionConfig, *, norm_after_shuffle: bool) -> None:
        super().__init__()
        self.merged_size = config.merged_size
        self.norm_after_shuffle = norm_after_shuffle
        width = config.merged_size if norm_after_shuffle else config.hidden_size
        self.norm = nn.LayerNorm(width, config.norm_eps)
        self.up = nn.Linear(config.merged_size, config.merged_size)
        self.down = nn.Linear(config.merged_size, config.out_hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.norm_after_shuffle:
            x = self.norm(x.view(-1, self.merged_size))
        else:
            x = self.norm(x).view(-1, self.merged_size)
        return self.down(F.gelu(self.up(x)))
