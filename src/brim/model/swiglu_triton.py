"""The kernels of :mod:`brim.model.swiglu`: float32 arithmetic, every element touched once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 1024


@triton.jit
def _halves(gate_up, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Offsets of this program's elements in (T, I) and in the first half of (T, 2 I)."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = gate_up + row * (2 * width) + column
    gate = tl.load(at, inside, 0).to(tl.float32)
    up = tl.load(at + width, inside, 0).to(tl.float32)
    return row * width + column, row * (2 * width) + column, inside, gate, up


@triton.jit
def _forward(gate_up, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    narrow, _wide, inside, gate, up = _halves(gate_up, width, BLOCK)
    tl.store(out + narrow, gate * tl.sigmoid(gate) * up, inside)


@triton.jit
def _backward(gate_up, grad, slope, out, width, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    narrow, wide, inside, gate, up = _halves(gate_up, width, BLOCK)
    incoming = tl.load(grad + narrow, inside, 0).to(tl.float32)
    sigmoid = tl.sigmoid(gate)
    silu = gate * sigmoid
    tl.store(slope + wide, incoming * up * (sigmoid + silu * (1 - sigmoid)), inside)
    tl.store(slope + wide + width, incoming * silu, inside)
    tl.store(out + narrow, silu * up, inside)


def forward(gate_up: torch.Tensor) -> torch.Tensor:
    gate_up = gate_up.contiguous()
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = gate_up.new_empty(rows, width)
    if out.numel():
        _forward[(rows, triton.cdiv(width, _BLOCK))](gate_up, out, width, BLOCK=_BLOCK)
    return out


def backward(gate_up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    gate_up, grad = gate_up.contiguous(), grad.contiguous()
    rows, width = grad.shape
    slope, out = torch.empty_like(gate_up), torch.empty_like(grad)
    if out.numel():
        _backward[(rows, triton.cdiv(width, _BLOCK))](
            gate_up, grad, slope, out, width, BLOCK=_BLOCK
        )
    return slope, out
