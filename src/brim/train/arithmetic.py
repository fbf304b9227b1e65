"""What all AdamW updates by torch operators share, whatever their moments are kept in."""

from __future__ import annotations

from typing import NamedTuple

import torch

from brim.train.rounding import hashed

CLIP, UPDATE, CORRECTION_1, CORRECTION_2 = range(4)
"""Places in the control tensor."""


class Rule(NamedTuple):
    """How one parameter is updated and its new values are rounded."""

    lr: float
    decay: float
    """Decoupled weight decay, before ``lr``."""
    betas: tuple[float, float]
    eps: float
    seed: int
    """Of the noise that rounds."""
    first: int
    """The number, in the whole parameter, of the first element that is updated here."""
    round_weight: bool
    """Stochastically; else it is rounded as torch does, or needs no rounding."""


def stepped(
    weight: torch.Tensor,
    grad: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    control: torch.Tensor,
    rule: Rule,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """New weight and moments in float32; ``control`` is (4,) float32 on the device."""
    clip, _, correction_1, correction_2 = control.unbind()
    g = grad.float() * clip
    m = mean + (1 - rule.betas[0]) * (g - mean)
    v = square + (1 - rule.betas[1]) * (g * g - square)
    w = weight.float()
    step = m / correction_1 / ((v / correction_2).sqrt() + rule.eps)
    w = w - rule.lr * rule.decay * w - rule.lr * step
    return w, m, v


def noise_of(like: torch.Tensor, seed: int, first: int) -> torch.Tensor:
    """32 random bits for each element of a part that begins at element ``first``."""
    elements = torch.arange(first, first + like.numel(), device=like.device)
    return hashed(elements, seed).view(like.shape)


def replace(target: torch.Tensor, value: torch.Tensor, update: torch.Tensor) -> None:
    """Write ``value`` unless the update is skipped (``update`` 0, on the device)."""
    # where, not a product: a skipped update may hold NaN
    target.copy_(torch.where(update != 0, value.to(target.dtype), target))
