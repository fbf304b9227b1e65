"""A mixture of experts on packed rows: every token goes to its k best of E small MLPs.

Tokens are sorted by expert on the device and each expert's share is one group of a grouped matrix
product, so no size is read on the host and every shape is the same in every step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from brim.model.config import TextConfig


class TextExperts(nn.Module):
    """In place of a text block's MLP.  Weights: router (E, h), gate_up (E, 2 I, h), down (E, h, I)
    with I the width of one expert."""

    def __init__(self, config: TextConfig) -> None:
        super().__init__()
        self.chosen = config.experts_per_token
        count, hidden, inner = config.experts, config.hidden_size, config.expert_size
        self.router = nn.Parameter(torch.empty(count, hidden))
        self.gate_up = nn.Parameter(torch.empty(count, 2 * inner, hidden))
        self.down = nn.Parameter(torch.empty(count, hidden, inner))
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(T, h) → (T, h)."""
        weights, experts = self._route(x)
        chosen = experts.flatten()
        order = chosen.argsort(stable=True)
        ends = _ends(chosen, self.router.shape[0])
        back = torch.empty_like(order).index_copy_(
            0, order, torch.arange(len(order), device=x.device)
        )
        taken = _Sorted.apply(x, order, back, self.chosen)
        gate, up = _grouped(taken, self.gate_up, ends).chunk(2, dim=-1)
        made = _grouped(F.silu(gate) * up, self.down, ends)
        # in the tokens' order a token's k results are neighbours
        results = _Unsorted.apply(made, order, back).unflatten(0, (-1, self.chosen))
        return (results * weights[..., None]).sum(1)

    def _route(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(T, k) weights that sum to 1 and experts of each token: the softmax is float32."""
        shares = F.linear(x, self.router).softmax(-1, dtype=torch.float32)
        weights, experts = shares.topk(self.chosen, dim=-1)
        return (weights / weights.sum(-1, keepdim=True)).to(x.dtype), experts


class _Sorted(torch.autograd.Function):
    """Each token (T, h) k times, in the order of the experts: (k T, h).

    The gradient is gathered too and summed over a token's k copies at once, where autograd's own
    would add them to memory one by one, in half precision and in no fixed order.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, order: torch.Tensor, back: torch.Tensor, chosen: int
    ) -> torch.Tensor:
        ctx.save_for_backward(back)
        ctx.chosen = chosen
        return x.index_select(0, order // chosen)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (back,) = ctx.saved_tensors
        copies = grad.index_select(0, back).unflatten(0, (-1, ctx.chosen))
        return copies.sum(1), None, None, None


class _Unsorted(torch.autograd.Function):
    """Rows in the order of the experts back in that of the tokens."""

    @staticmethod
    def forward(
        ctx: Any, made: torch.Tensor, order: torch.Tensor, back: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(order)
        return made.index_select(0, back)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (order,) = ctx.saved_tensors
        return grad.index_select(0, order), None, None


def _ends(chosen: torch.Tensor, experts: int) -> torch.Tensor:
    """(E,) int32: where each expert's tokens end in the sorted order.  ``torch.bincount`` would
    read its maximum on the host."""
    counts = torch.zeros(experts, dtype=torch.int32, device=chosen.device)
    counts = counts.index_add(0, chosen, torch.ones_like(chosen, dtype=torch.int32))
    return counts.cumsum(0, dtype=torch.int32)


def _grouped(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """Rows of ``x`` (R, in) times the matrix (out, in) of the expert whose group they lie in."""
    product: torch.Tensor = F.grouped_mm(x, weights.transpose(1, 2), offs=ends)
    return product
