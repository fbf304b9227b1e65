"""Cutting, normalising and casting in one pass over memory, all frames of a row in one launch.

Plain torch takes a copy a frame and four passes, one of them over float32; here a byte is read once
and its value written once.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK = 4096
_PATCHES = 4  # of one program: a block of four is one visual token


@triton.jit
def _normalised(x):  # type: ignore[no-untyped-def]
    # the rounded quotient, as torch has it: the quick one is off by a unit or two
    return tl.div_rn(x.to(tl.float32), 127.5) - 1.0


@triton.jit
def _normalise(source, out, n, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(source + at, at < n, 0)
    tl.store(out + at, _normalised(x).to(out.dtype.element_ty), at < n)


@triton.jit
def _cut(  # type: ignore[no-untyped-def]
    pixels,
    table,
    out,
    PATCH: tl.constexpr,
    MERGE: tl.constexpr,
    MOMENTS: tl.constexpr,
    NORMALISE: tl.constexpr,
    PATCHES: tl.constexpr,
):
    frame = table + tl.program_id(1) * 8
    height, width = tl.load(frame + 2), tl.load(frame + 3)
    row_stride, column_stride = tl.load(frame + 4), tl.load(frame + 5)
    channel_stride = tl.load(frame + 6)
    # patches run over (block row, block column, row in block, column in block)
    at = tl.program_id(0) * PATCHES + tl.arange(0, PATCHES)
    inside = at < height * width
    block, place = at // (MERGE * MERGE), at % (MERGE * MERGE)
    blocks = width // MERGE
    row = block // blocks * MERGE + place // MERGE
    column = block % blocks * MERGE + place % MERGE
    corner = tl.load(frame) + row * PATCH * row_stride + column * PATCH * column_stride
    AREA: tl.constexpr = PATCH * PATCH
    value = tl.arange(0, AREA)
    within = value // PATCH * row_stride + value % PATCH * column_stride
    source = corner[:, None] + within[None, :]
    first = tl.load(frame + 1) + at
    target = first[:, None] * (3 * MOMENTS * AREA) + tl.load(frame + 7) * AREA + value[None, :]
    mask = inside[:, None] & (value >= 0)[None, :]
    for channel in tl.static_range(3):
        x = tl.load(pixels + source + channel * channel_stride, mask, 0)
        if NORMALISE:
            x = _normalised(x).to(out.dtype.element_ty)
        tl.store(out + target + channel * MOMENTS * AREA, x, mask)


def cut(
    pixels: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    patch: int,
    merge: int,
    largest: int,
) -> None:
    """The same as :func:`brim.data.pixels.reference_cut`; ``table`` lies on the device."""
    _cut[(triton.cdiv(largest, _PATCHES), table.shape[0])](
        pixels,
        table,
        out,
        PATCH=patch,
        MERGE=merge,
        MOMENTS=out.shape[1] // (3 * patch * patch),
        NORMALISE=out.dtype is not torch.uint8,
        PATCHES=_PATCHES,
    )


def normalize(patches: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The same as :func:`brim.data.pixels.normalize`, without a float32 copy of the row."""
    source = patches.contiguous()
    out = torch.empty(source.shape, dtype=dtype, device=source.device)
    if n := source.numel():
        _normalise[(triton.cdiv(n, _BLOCK),)](source, out, n, BLOCK=_BLOCK)
    return out
