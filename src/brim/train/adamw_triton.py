"""AdamW in one pass over memory: clipping, masters, stochastic rounding, skipped updates.

Why a kernel of our own: torch's fused AdamW keeps weights and moments in one dtype, so masters or
rounded moments cost passes of their own, and neither it nor torchao takes the clip factor and the
"skip this update" flag from device memory, which a step without host reads needs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from brim.train.arithmetic import Rule
from brim.train.rounding import spread

_BLOCK = 1024


@triton.jit
def _hashed(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 16)) * 0x7FEB352D
    x = (x ^ (x >> 15)) * 0x846CA68B
    return x ^ (x >> 16)


@triton.jit
def _stochastic(x, noise):  # type: ignore[no-untyped-def]
    bits = (x.to(tl.uint32, bitcast=True) + noise) & 0xFFFF0000
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _stepped(w, g, m, v, control, lr, decay, beta1, beta2, eps):  # type: ignore[no-untyped-def]
    """:func:`brim.train.arithmetic.stepped` of gradients that are clipped already."""
    m = m + (1 - beta1) * (g - m)
    v = v + (1 - beta2) * (g * g - v)
    step = m / tl.load(control + 2) / (tl.sqrt(v / tl.load(control + 3)) + eps)
    return w - lr * decay * w - lr * step, m, v


# a kernel specialised on the seed's divisibility would be compiled again and again
@triton.jit(do_not_specialize=["seed"])
def _adamw(  # type: ignore[no-untyped-def]
    weight,
    master,
    grad,
    mean,
    square,
    control,
    n,
    lr,
    decay,
    beta1,
    beta2,
    eps,
    seed,
    HAS_MASTER: tl.constexpr,
    ROUND_WEIGHT: tl.constexpr,
    ROUND_STATE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # control: clip factor, 1 to update or 0 to skip, 1 - beta1^t, 1 - beta2^t
    if tl.load(control + 1) != 0:
        at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
        inside = at < n
        g = tl.load(grad + at, inside, 0).to(tl.float32) * tl.load(control)
        m = tl.load(mean + at, inside, 0).to(tl.float32)
        v = tl.load(square + at, inside, 0).to(tl.float32)
        source = master if HAS_MASTER else weight
        w = tl.load(source + at, inside, 0).to(tl.float32)
        w, m, v = _stepped(w, g, m, v, control, lr, decay, beta1, beta2, eps)
        if HAS_MASTER:
            tl.store(master + at, w, inside)
        if ROUND_WEIGHT or ROUND_STATE:
            noise = _hashed(at.to(tl.uint32) + seed.to(tl.uint32))
            if ROUND_WEIGHT:
                w = _stochastic(w, noise & 0xFFFF)
            if ROUND_STATE:
                m = _stochastic(m, noise >> 16)
                v = _stochastic(v, _hashed(noise) & 0xFFFF)
        tl.store(weight + at, w, inside)
        tl.store(mean + at, m, inside)
        tl.store(square + at, v, inside)


def _signed(start: int) -> int:
    """``start`` modulo 2³² as a signed 32-bit argument, so that no value needs another kernel."""
    return (start + (1 << 31)) % (1 << 32) - (1 << 31)


def update(
    weight: torch.Tensor,
    master: torch.Tensor | None,
    grad: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    control: torch.Tensor,
    rule: Rule,
) -> None:
    """The same as :func:`brim.train.adamw.reference_update`, in place, in one launch."""
    n = weight.numel()
    _adamw[(triton.cdiv(n, _BLOCK),)](
        weight,
        weight if master is None else master,
        grad,
        mean,
        square,
        control,
        n,
        rule.lr,
        rule.decay,
        *rule.betas,
        rule.eps,
        _signed(spread(rule.seed) + rule.first),
        HAS_MASTER=master is not None,
        ROUND_WEIGHT=rule.round_weight,
        ROUND_STATE=mean.dtype is torch.bfloat16,
        BLOCK=_BLOCK,
    )
