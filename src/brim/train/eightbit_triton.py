"""The kernel of :mod:`brim.train.eightbit`: one pass over memory, a tile of rows a program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from brim.train import eightbit
from brim.train.adamw_triton import _hashed, _signed, _stepped, _stochastic
from brim.train.arithmetic import Rule
from brim.train.rounding import spread

_ROWS = 4
"""Of a program's tile, which is one block wide."""


@triton.jit
def _decoded(code, scale, TOP: tl.constexpr):  # type: ignore[no-untyped-def]
    """``TOP`` 127: with a sign in the highest bit."""
    code = code.to(tl.int32)
    size = code & 0x7F if TOP == 127 else code
    value = ((size + (1016 - TOP)) << 20).to(tl.float32, bitcast=True)
    value = tl.where(size > 0, value, 0.0)
    if TOP == 127:
        value = tl.where(code > 0x7F, -value, value)
    return value * scale[:, None]


@triton.jit
def _encoded(value, noise, TOP: tl.constexpr):  # type: ignore[no-untyped-def]
    """(codes, scales) of a tile whose places beyond the matrix hold 0."""
    largest = tl.max(tl.abs(value), 1)
    exponent = (largest.to(tl.int32, bitcast=True) + 0x7FFFFF) >> 23
    scale = (tl.maximum(exponent, 1) << 23).to(tl.float32, bitcast=True)
    x = value / scale[:, None]
    size_of = tl.abs(x)
    noise = (noise & 0xFFFFF).to(tl.int32)
    size = ((size_of.to(tl.int32, bitcast=True) + noise) >> 20) - (1016 - TOP)
    least = 1.9073486328125e-05 if TOP == 127 else 2.9103830456733704e-10
    small = tl.where(size_of > 0, 1, 0)
    if TOP == 127:
        small = tl.where(size_of > noise.to(tl.float32) * (least / 1048576), small, 0)
    size = tl.where(size_of < least, small, size)
    if TOP == 127:
        size = size + tl.where(x < 0, 0x80, 0)
    return size.to(tl.uint8), scale


@triton.jit(do_not_specialize=["seed"])
def _adamw8(  # type: ignore[no-untyped-def]
    weight,
    master,
    grad,
    mean,
    square,
    mean_scale,
    square_scale,
    control,
    rows,
    columns,
    blocks,
    lr,
    decay,
    beta1,
    beta2,
    eps,
    seed,
    HAS_MASTER: tl.constexpr,
    ROUND_WEIGHT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    # control: clip factor, 1 to update or 0 to skip, 1 - beta1^t, 1 - beta2^t
    if tl.load(control + 1) != 0:
        row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        at = row[:, None].to(tl.int64) * columns + column[None, :]
        inside = (row[:, None] < rows) & (column[None, :] < columns)
        scale_at, known = row.to(tl.int64) * blocks + tl.program_id(1), row < rows
        g = tl.load(grad + at, inside, 0).to(tl.float32) * tl.load(control)
        m = _decoded(tl.load(mean + at, inside, 0), tl.load(mean_scale + scale_at, known, 0), 127)
        v = _decoded(
            tl.load(square + at, inside, 0), tl.load(square_scale + scale_at, known, 0), 255
        )
        source = master if HAS_MASTER else weight
        w = tl.load(source + at, inside, 0).to(tl.float32)
        w, m, v = _stepped(w, g, m, v, control, lr, decay, beta1, beta2, eps)
        noise = _hashed(at.to(tl.uint32) + seed.to(tl.uint32))
        again = _hashed(noise)
        if HAS_MASTER:
            tl.store(master + at, w, inside)
        if ROUND_WEIGHT:
            w = _stochastic(w, noise & 0xFFFF)
        tl.store(weight + at, w, inside)
        codes, scales = _encoded(m, again, 127)
        tl.store(mean + at, codes, inside)
        tl.store(mean_scale + scale_at, scales, known)
        codes, scales = _encoded(v, _hashed(again), 255)
        tl.store(square + at, codes, inside)
        tl.store(square_scale + scale_at, scales, known)


def update(
    weight: torch.Tensor,
    master: torch.Tensor | None,
    grad: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    mean_scale: torch.Tensor,
    square_scale: torch.Tensor,
    control: torch.Tensor,
    rule: Rule,
) -> None:
    """The same as :func:`brim.train.eightbit.reference_update`, in place, in one launch."""
    rows, columns = weight.shape
    blocks = -(-columns // eightbit.BLOCK)
    _adamw8[(triton.cdiv(rows, _ROWS), blocks)](
        weight,
        weight if master is None else master,
        grad,
        mean,
        square,
        mean_scale,
        square_scale,
        control,
        rows,
        columns,
        blocks,
        rule.lr,
        rule.decay,
        *rule.betas,
        rule.eps,
        _signed(spread(rule.seed) + rule.first),
        HAS_MASTER=master is not None,
        ROUND_WEIGHT=rule.round_weight,
        ROWS=_ROWS,
        BLOCK=eightbit.BLOCK,
    )
