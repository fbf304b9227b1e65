"""AdamW's moments in a byte each, for matrices: 2.03 bytes a parameter instead of 4 or 8.

A block of 256 neighbours of a row shares a scale, the power of two above its largest value; a
moment is kept, relative to it, in eight bits of its own float format:

=======  ====================  ====================  =======================
moment   bits                  relative step         smallest, to the scale
=======  ====================  ====================  =======================
mean     sign, 4 exp., 3 man.  1/8 to 1/16           2^-16 · 5/4, and 0
square   5 exp., 3 man.        1/8 to 1/16           2^-32 · 5/4, and 0
=======  ====================  ====================  =======================

Both are rounded stochastically, because with beta2 = 0.999 a second moment changes by less than a
hundredth of such a step at once and would never move.  The scale is a power of two so that values
which do not change stay on the grid when it does: then rounding adds a relative spread of
√(step / 2), a fifth, to the second moment and a tenth to the update, and no bias.  A second moment
is never rounded to zero, which would make its update infinite.

bitsandbytes (arXiv 2110.02861) and torchao keep tables of codes and round to the nearest; neither
takes the clip factor and the decision to skip from the device, and torchao's draws come from the
global generator, so a resumed run would not have the same bits.
"""

from __future__ import annotations

import torch

from brim.train.arithmetic import UPDATE, Rule, noise_of, replace, stepped
from brim.train.rounding import hashed, stochastic_bfloat16

BLOCK = 256
"""Elements of a row that share a scale."""
CUT = 20
"""Bits of a float32 that are rounded away: 23 of mantissa, of which 3 stay."""
ONE = 127 << 3
"""The kept bits of 1.0."""
MEAN_TOP, SQUARE_TOP = 127, 255
"""Codes of 1.0: the largest of 7 and of 8 bits."""
LEAST_MEAN, LEAST_SQUARE = 1.25 * 2**-16, 1.25 * 2**-32
"""Values of code 1."""
LEAST_SCALE = 1
"""Exponent of the smallest scale, 2^-126: a block of zeros divides by it."""


def fits(parameter: torch.Tensor) -> bool:
    """Whether a parameter's moments are kept so: matrices, and stacks of them; vectors are few, and
    sensitive."""
    return parameter.ndim in (2, 3)


def allocate(parameter: torch.Tensor) -> dict[str, torch.Tensor]:
    """Zero moments of a matrix (R, C) or a stack (E, R, C), a sharded one too (along its first
    axis): codes of the same shape, uint8, and scales (…, R, ⌈C / 256⌉), float32."""
    blocks = -(-parameter.shape[-1] // BLOCK)
    codes, scales = parameter.detach(), parameter.detach()[..., :blocks]
    return {
        "mean": torch.zeros_like(codes, dtype=torch.uint8),
        "square": torch.zeros_like(codes, dtype=torch.uint8),
        "mean_scale": torch.zeros_like(scales, dtype=torch.float32).contiguous(),
        "square_scale": torch.zeros_like(scales, dtype=torch.float32).contiguous(),
    }


def reference_update(
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
    """One matrix's update in place, any device; see :class:`brim.train.adamw.Update`."""
    update = control[UPDATE]
    w, m, v = stepped(
        weight if master is None else master, grad, decode(mean, mean_scale, signed=True),
        decode(square, square_scale, signed=False), control, rule,
    )  # fmt: skip
    noise = noise_of(weight, rule.seed, rule.first)
    again = hashed(noise, 0)
    if master is not None:
        replace(master, w, update)
    if rule.round_weight:
        w = stochastic_bfloat16(w, noise & 0xFFFF)
    replace(weight, w, update)
    for codes, scale, value, bits, signed in (
        (mean, mean_scale, m, again, True),
        (square, square_scale, v, hashed(again, 0), False),
    ):
        new_codes, new_scale = encode(value, bits & ((1 << CUT) - 1), signed=signed)
        replace(codes, new_codes, update)
        replace(scale, new_scale, update)


def decode(codes: torch.Tensor, scale: torch.Tensor, *, signed: bool) -> torch.Tensor:
    """(R, C) codes with (R, ⌈C / 256⌉) scales as float32."""
    code = codes.to(torch.int32)
    size = code & 0x7F if signed else code
    bits = (size + (ONE - _top(signed))) << CUT
    value = torch.where(size > 0, bits.view(torch.float32), 0.0)
    if signed:
        value = torch.where(code > 0x7F, -value, value)
    return value * _spread(scale, codes.shape[1])


def encode(
    values: torch.Tensor, noise: torch.Tensor, *, signed: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Float32 (R, C) as codes and scales; ``noise`` is uniform in [0, 2²⁰), an integer.

    Values that are not signed must not be negative.
    """
    scale = _scales(values)
    x = (values / _spread(scale, values.shape[1])).contiguous()
    bits = x.abs().view(torch.int32).to(torch.int64)
    least = LEAST_MEAN if signed else LEAST_SQUARE
    size = ((bits + noise) >> CUT) - (ONE - _top(signed))
    # below the smallest code: up or down with the odds that keep the mean
    up = x.abs() > noise * (least / (1 << CUT)) if signed else x > 0
    size = torch.where(x.abs() < least, up.to(torch.int64), size)
    if signed:
        size = size + torch.where(x < 0, 0x80, 0)
    return size.to(torch.uint8), scale


def _top(signed: bool) -> int:
    return MEAN_TOP if signed else SQUARE_TOP


def _scales(values: torch.Tensor) -> torch.Tensor:
    """The power of two at or above the largest magnitude of each block."""
    rows, columns = values.shape
    blocks = -(-columns // BLOCK)
    padded = torch.nn.functional.pad(values.abs(), (0, blocks * BLOCK - columns))
    largest = padded.view(rows, blocks, BLOCK).amax(-1)
    exponent = (largest.view(torch.int32) + 0x7FFFFF) >> 23
    return (exponent.clamp(min=LEAST_SCALE) << 23).view(torch.float32)


def _spread(scale: torch.Tensor, columns: int) -> torch.Tensor:
    return scale.repeat_interleave(BLOCK, dim=1)[:, :columns]
