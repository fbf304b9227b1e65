"""Stochastic rounding: float32 to bfloat16 up or down with odds that make the mean exact.

Ordinary rounding loses every update smaller than half a unit of a weight's last place, which in
bfloat16 is most of them (arXiv 2010.06192).  The noise is a hash of (seed, element), so a step
repeats to the bit on any device, and the Triton kernel and this code agree exactly.
"""

from __future__ import annotations

import torch

_WORD = 0xFFFFFFFF
SEED_STRIDE = 0x9E3779B9  # 2³² / golden ratio: consecutive seeds land far apart


def spread(seed: int) -> int:
    """A seed's offset into the sequence of elements: 31 bits, a kernel's signed argument."""
    return seed * SEED_STRIDE & 0x7FFFFFFF


def hashed(elements: torch.Tensor, seed: int) -> torch.Tensor:
    """32 random bits for each element index, int64 in [0, 2³²).

    The finaliser "lowbias32" of Ellis (hash-prospector): every input bit flips every output bit
    with probability within 0.2 % of one half.
    """
    x = (elements + spread(seed)) & _WORD
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & _WORD
    x = ((x ^ (x >> 15)) * 0x846CA68B) & _WORD
    return x ^ (x >> 16)


def stochastic_bfloat16(values: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """Finite float32 ``values`` as bfloat16; ``noise`` is uniform in [0, 2¹⁶), int64."""
    bits = values.contiguous().view(torch.int32).to(torch.int64)
    # adding to the dropped half carries into the kept one with the right probability; the sign
    # bit takes no part, so magnitudes are rounded alike for both signs
    rounded = (bits + noise) & ~0xFFFF
    signed = torch.where(rounded >= 1 << 31, rounded - (1 << 32), rounded)
    return signed.to(torch.int32).view(torch.float32).to(torch.bfloat16)
