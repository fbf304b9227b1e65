"""Moves between the rows of two tensors by indices that name no row twice.

torch's own backward of ``index_select`` accumulates with atomics, and its ``index_add`` copies and
accumulates too: needed only where rows may repeat.  Here they cannot (``batch.check``), so plain
copies suffice, which are faster and give the same bits every time.
"""

from __future__ import annotations

from typing import Any

import torch


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(rows)
        ctx.length = x.shape[0]
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        (rows,) = ctx.saved_tensors
        return grad.new_zeros((ctx.length, *grad.shape[1:])).index_copy_(0, rows, grad), None


class _Add(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(rows)
        return x.index_copy(0, rows, x.index_select(0, rows) + values)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, torch.Tensor | None]:
        (rows,) = ctx.saved_tensors
        return grad, None, grad.index_select(0, rows) if ctx.needs_input_grad[2] else None


class _Blend(torch.autograd.Function):
    """Σ_k weights[:, k] · table[indices[:, k]]; here rows of the table do repeat."""

    @staticmethod
    def forward(
        ctx: Any, table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        ctx.save_for_backward(indices, weights)
        ctx.table = table.shape, table.dtype
        total = table.new_zeros((indices.shape[0], table.shape[1]), dtype=torch.float32)
        for tap in range(indices.shape[1]):
            total.addcmul_(table.index_select(0, indices[:, tap]), weights[:, tap, None])
        return total

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        indices, weights = ctx.saved_tensors
        shape, dtype = ctx.table
        # float32 sums: a learned position collects about a hundred patches of a row
        total = grad.new_zeros(shape, dtype=torch.float32)
        for tap in range(indices.shape[1]):
            total.index_add_(0, indices[:, tap], grad.float() * weights[:, tap, None])
        return total.to(dtype), None, None


def take_rows(x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """``x[rows]``, (S, h); ``rows`` names no row twice."""
    taken: torch.Tensor = _Take.apply(x, rows)
    return taken


def add_rows(x: torch.Tensor, rows: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """A copy of ``x`` with ``values`` added to its ``rows``, none named twice."""
    added: torch.Tensor = _Add.apply(x, rows, values)
    return added


def blend_rows(table: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """(P, h) float32: Σ_k ``weights[:, k] · table[indices[:, k]]``."""
    blended: torch.Tensor = _Blend.apply(table, indices, weights)
    return blended
