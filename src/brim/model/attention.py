"""Attention over documents packed in one row: one call, boundaries in ``cu_seqlens``.

Four implementations with one signature.  ``q`` is (T, heads, head_dim), ``k`` and ``v`` are
(T, kv_heads, head_dim) with kv_heads dividing heads; row t sees only rows of its own segment, and
with ``causal`` only those not after t.  No implementation reads ``cu_seqlens`` on the host.

========== ======================================================================================
fa4        flash_attn.cute (FlashAttention 4, CuTe DSL): Hopper and newer, fp16 and bf16
varlen     the flash kernel built into torch, which ``torch.nn.attention.varlen`` wraps (called
           below its wrapper, which knows grouped heads only from torch 2.12): Ampere and newer
efficient  torch's memory-efficient kernel with boundaries: any CUDA device, fp32 too; heads of
           grouped keys are repeated for it
math       masked product, O(T²) memory: any device; the reference
========== ======================================================================================
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Attention = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, int, bool], torch.Tensor
]
_FROM_TOP_LEFT = 1  # custom_mask_type of torch's memory-efficient kernel: causal


def launch_bound(longest: int) -> int:
    """A bound on segment lengths that takes few values: kernels use it to size their launch, and
    a compiled block must not see a new integer in every step."""
    return 1 << max(7, (max(longest, 1) - 1).bit_length())


def math_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
) -> torch.Tensor:
    rows = torch.arange(q.shape[0], device=q.device, dtype=cu_seqlens.dtype)
    segment = torch.searchsorted(cu_seqlens, rows, right=True)
    visible = segment[:, None] == segment[None, :]
    if causal:
        visible &= rows[:, None] >= rows[None, :]
    groups = q.shape[1] // k.shape[1]
    # a batch of one: without it torch's fast kernel for CPUs is not taken
    heads_first = (
        q.transpose(0, 1)[None],
        k.repeat_interleave(groups, dim=1).transpose(0, 1)[None],
        v.repeat_interleave(groups, dim=1).transpose(0, 1)[None],
    )
    return F.scaled_dot_product_attention(*heads_first, attn_mask=visible)[0].transpose(0, 1)


def efficient_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
) -> torch.Tensor:
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    # its backward pass refuses a bound above the number of rows
    bound = torch.sym_min(longest, q.shape[0])
    out, *_ = torch.ops.aten._efficient_attention_forward(
        q[None],
        k[None],
        v[None],
        None,
        cu_seqlens,
        cu_seqlens,
        bound,
        bound,
        0.0,
        _FROM_TOP_LEFT if causal else 0,
        True,
    )
    return out[0]


def varlen_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
) -> torch.Tensor:
    out, *_ = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_seqlens, cu_seqlens, longest, longest, 0.0, causal, False
    )
    return out


def fa4_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
) -> torch.Tensor:
    return _fa4_forward(q, k, v, cu_seqlens, longest, causal)[0]


# FlashAttention 4 compiles its kernels from Python, which torch.compile cannot trace: as custom
# operators they are opaque to it, and a compiled block stays one graph.


@torch.library.custom_op("brim::fa4_forward", mutates_args=())
def _fa4_forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    from flash_attn.cute.interface import _flash_attn_fwd

    out, lse = _flash_attn_fwd(
        q,
        k,
        v,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
        causal=causal,
        return_lse=True,
    )[:2]
    return out, lse


@torch.library.custom_op("brim::fa4_backward", mutates_args=())
def _fa4_backward(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    from flash_attn.cute.interface import _flash_attn_bwd

    dq, dk, dv = _flash_attn_bwd(
        q,
        k,
        v,
        out,
        grad,
        lse,
        softmax_scale=scale,
        causal=causal,
        cu_seqlens_q=cu_seqlens,
        cu_seqlens_k=cu_seqlens,
        max_seqlen_q=longest,
        max_seqlen_k=longest,
    )[:3]
    return dq, dk, dv


@_fa4_forward.register_fake
def _(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), q.new_empty((q.shape[1], q.shape[0]), dtype=torch.float32)


@_fa4_backward.register_fake
def _(
    grad: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    cu_seqlens: torch.Tensor,
    longest: int,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _fa4_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, ...]) -> None:
    *tensors, ctx.longest, ctx.causal = inputs
    ctx.save_for_backward(*tensors, *output)


def _fa4_grad(ctx: Any, grad: torch.Tensor, _lse: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    q, k, v, cu_seqlens, out, lse = ctx.saved_tensors
    size = q.shape[2]
    # here and not in the operator: a compiled block fuses the copies with what it does around them
    grad, q, k, v, out = (fa4_backward_width(t) for t in (grad, q, k, v, out))
    grads = _fa4_backward(
        grad.contiguous(), q, k, v, out, lse, cu_seqlens, ctx.longest, ctx.causal, size**-0.5
    )
    return (*(g[..., :size] for g in grads), None, None, None)


def fa4_backward_width(x: torch.Tensor) -> torch.Tensor:
    """(T, H, d) with zeros up to a multiple of 32, where FlashAttention 4 needs them.

    On Hopper (up to 4.0.0b36 at least) its backward kernel rounds d up to a multiple of 16 and the
    buffer of the queries' gradient to one of 32.  Where the two differ, as for the 72 of the larger
    towers, that gradient is wrong without a word (Dao-AILab/flash-attention#2896).  Zeros change no
    product, and 72 takes a tile of 96 there anyway.
    """
    size = x.shape[-1]
    sixteens, thirty_twos = (-(-size // n) * n for n in (16, 32))
    return x if sixteens == thirty_twos else F.pad(x, (0, thirty_twos - size))


_fa4_forward.register_autograd(_fa4_grad, setup_context=_fa4_setup)

BACKENDS: dict[str, Attention] = {
    "fa4": fa4_attention,
    "varlen": varlen_attention,
    "efficient": efficient_attention,
    "math": math_attention,
}
