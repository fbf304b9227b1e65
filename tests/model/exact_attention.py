"""Attention in float64, exactly and with the roundings of a flash kernel."""

from __future__ import annotations

from collections.abc import Iterator

import torch

BOUND = 2.0**-7
"""Largest error of a correct kernel in bfloat16, relative to the norm of each result.

Rounding to bfloat16 errs by 2⁻⁹/√3 = 0.0011 root mean square.  A flash kernel rounds inputs of its
products (the probabilities; in the backward pass their slopes too) and its results, and the slopes
inherit the rounded output: :func:`flash` errs by 0.0019 to 0.0026.  Three times that leaves room
for partial sums that are rounded too, and is an eighth of what a softmax scaled for heads of 80
instead of 72 would err by."""
Results = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]
PARTS = ("out", "dq", "dk", "dv")


def inputs(
    lengths: list[int], heads: int, kv_heads: int, size: int, seed: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Random q, k, v (rows, heads, size) and the boundaries of the documents."""
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(lengths), heads, size), (sum(lengths), kv_heads, size)
    q, k, v = (torch.randn(s, generator=generator) for s in (shape[0], shape[1], shape[1]))
    return q, k, v, torch.tensor([0, *lengths]).cumsum(0).int()


def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], causal: bool
) -> torch.Tensor:
    """Softmax attention in float64, document by document and head by head; differentiable."""
    documents = []
    for rows in _documents(lengths):
        heads = []
        for head in range(q.shape[1]):
            key = k[rows, head // (q.shape[1] // k.shape[1])].double()
            value = v[rows, head // (q.shape[1] // k.shape[1])].double()
            scores = q[rows, head].double() @ key.t() / q.shape[2] ** 0.5
            heads.append(_masked(scores, causal).softmax(-1) @ value)
        documents.append(torch.stack(heads, dim=1))
    return torch.cat(documents)


def exact(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lengths: list[int],
    causal: bool,
) -> Results:
    """Output and gradients in float64, of inputs that are rounded to bfloat16."""
    q, k, v = leaves = [_rounded(t).requires_grad_() for t in (q, k, v)]
    out = attend(q, k, v, lengths, causal)
    return (out.detach(), *torch.autograd.grad(out, leaves, _rounded(grad)))  # type: ignore[return-value]


def flash(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    grad: torch.Tensor,
    lengths: list[int],
    causal: bool,
    *,
    scale: float,
) -> Results:
    """The same with the roundings of a flash kernel: exact products and sums, but bfloat16
    probabilities, slopes and results, and the softmax's slope from the rounded output."""
    q, k, v, grad = (_rounded(t) for t in (q, k, v, grad))
    out, dq, dk, dv = (torch.zeros_like(t) for t in (q, q, k, v))
    groups = q.shape[1] // k.shape[1]
    for rows in _documents(lengths):
        for head in range(q.shape[1]):
            own, shared = (rows, head), (rows, head // groups)
            scores = _masked(q[own] @ k[shared].t() * scale, causal)
            weights = (scores - scores.amax(-1, keepdim=True)).exp()
            total = weights.sum(-1, keepdim=True)
            out[own] = _rounded(_rounded(weights) @ v[shared] / total)
            slopes = grad[own] @ v[shared].t() - (out[own] * grad[own]).sum(-1, keepdim=True)
            slopes = _rounded(weights / total * slopes)
            dq[own] = slopes @ k[shared] * scale
            dk[shared] += slopes.t() @ q[own] * scale
            dv[shared] += _rounded(weights / total).t() @ grad[own]
    return out, _rounded(dq), _rounded(dk), _rounded(dv)


def errors(found: Results, expected: Results) -> dict[str, float]:
    """Relative to the norm of each part; infinite where anything is not a number."""
    gaps = {}
    for part, a, b in zip(PARTS, found, expected, strict=True):
        error = ((a.double().cpu() - b).norm() / b.norm()).item()
        gaps[part] = error if error == error else float("inf")
    return gaps


def _documents(lengths: list[int]) -> Iterator[slice]:
    start = 0
    for length in lengths:
        yield slice(start, start + length)
        start += length


def _masked(scores: torch.Tensor, causal: bool) -> torch.Tensor:
    if not causal:
        return scores
    return scores.masked_fill(torch.ones_like(scores).triu(1).bool(), float("-inf"))


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.bfloat16().double()
