"""Cross-entropy from hidden states, without all logits at once."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

# (logits (R, V), labels (R,), scale (0-dim), want gradient) → loss (R,) float32; with a gradient,
# logits are replaced by scale · (softmax - one-hot).
RowLoss = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]

CHUNK_ROWS = 4096
"""Scored rows whose logits exist at once: 1.2 GB in bf16 at 151,936 words.  Most rows of chat data
score fewer, and then the head's gradient is one product, rounded once."""


def torch_row_loss(
    logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, want_grad: bool
) -> torch.Tensor:
    """The reference :data:`RowLoss`, on any device."""
    wide = logits.float()
    target = labels[:, None]
    normaliser = wide.logsumexp(dim=-1, keepdim=True)
    loss = (normaliser - wide.gather(1, target)).squeeze(1)
    if want_grad:
        probability = wide.sub_(normaliser).exp_()
        minus_one = torch.full((1, 1), -1.0, device=wide.device).expand_as(target)
        probability.scatter_add_(1, target, minus_one)
        logits.copy_(probability.mul_(scale))
    return loss


def _one_pass(
    logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, want_grad: bool
) -> torch.Tensor:
    # a comparison in place of a scatter: the compiler fuses it, so no (R, V) float32 tensor exists
    wide = logits.float()
    hit = labels[:, None] == torch.arange(logits.shape[1], device=logits.device)
    normaliser = wide.logsumexp(dim=-1, keepdim=True)
    loss = normaliser.squeeze(1) - torch.where(hit, wide, 0.0).sum(dim=-1)
    if want_grad:
        logits.copy_(((wide - normaliser).exp() - hit.float()) * scale)
    return loss


@lru_cache(maxsize=1)
def _compiled() -> RowLoss:
    compiled: RowLoss = torch.compile(_one_pass, dynamic=True)
    return compiled


def fused_row_loss(
    logits: torch.Tensor, labels: torch.Tensor, scale: torch.Tensor, want_grad: bool
) -> torch.Tensor:
    """A :data:`RowLoss` compiled into two passes over the logits, without float32 copies."""
    return _compiled()(logits, labels, scale, want_grad)


class _LinearCrossEntropy(torch.autograd.Function):
    """Gradients are computed chunk by chunk in the forward pass, while the logits exist.

    The method of Liger Kernel (arXiv 2410.10989).  Liger's own function is not used because it
    reads the number of labels on the host in every call; here the caller knows the scale.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        scale: float,
        row_loss: RowLoss,
        chunk: int,
        enabled: bool,
    ) -> torch.Tensor:
        want_hidden, want_weight = (enabled and need for need in ctx.needs_input_grad[:2])
        grads: list[torch.Tensor] = []
        grad_weight: torch.Tensor | None = None
        total = hidden.new_zeros((), dtype=torch.float32)
        # on the device: a compiled loss would be specialised on the number, new in every step
        factor = torch.full_like(total, scale)
        # a row of an evaluation may have no labels, and no kernel is made for none
        pieces = zip(hidden.split(chunk), labels.split(chunk), strict=True) if len(labels) else ()
        for rows, targets in pieces:
            logits = rows @ weight.t()
            total += row_loss(logits, targets, factor, want_hidden or want_weight).sum()
            if want_hidden:
                grads.append(logits @ weight)
            if want_weight:
                grad_weight = _accumulate(grad_weight, logits, rows, one=len(labels) <= chunk)
        grad_hidden = torch.cat(grads) if grads else torch.zeros_like(hidden)
        if grad_weight is None and want_weight:
            grad_weight = torch.zeros_like(weight)
        ctx.save_for_backward(
            grad_hidden if want_hidden else None,
            None if grad_weight is None else grad_weight.to(weight.dtype),
        )
        return total * scale

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        scaled = [
            None if saved is None else saved * grad.to(saved.dtype) for saved in ctx.saved_tensors
        ]
        return (*scaled, None, None, None, None, None)


def _accumulate(
    total: torch.Tensor | None, logits: torch.Tensor, rows: torch.Tensor, *, one: bool
) -> torch.Tensor:
    """The head's gradient so far; several chunks are summed in float32, rounded at the end."""
    part = logits.t() @ rows
    if one:
        return part
    return part.float() if total is None else total.add_(part)


def linear_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    scale: float = 1.0,
    row_loss: RowLoss = torch_row_loss,
    chunk: int = CHUNK_ROWS,
) -> torch.Tensor:
    """``scale`` · Σ cross-entropy of ``hidden @ weight.T`` against ``labels``: a float32 scalar.

    hidden (S, h), weight (V, h), labels (S,) int64 in [0, V).  The mean over the tokens of an
    optimizer step is the sum over its rows with ``scale`` = 1 / tokens, known before the step.
    """
    loss: torch.Tensor = _LinearCrossEntropy.apply(
        hidden, weight, labels, scale, row_loss, chunk, torch.is_grad_enabled()
    )
    return loss
