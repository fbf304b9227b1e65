"""What all AdamW updates by torch operators share, whatever their moments are kept in."""

from __future__ import annotations

import torch

from brim.train.rounding import hashed

CLIP, UPDATE, CORRECTION_1, CORRECTION_2 = range(4)
"""Places in the control tensor."""


def stepped(
    weight: torch.Tensor,
    grad: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    control: torch.Tensor,
    *,
    lr: float,
    decay: float,
    betas: tuple[float, float],
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """New weight and moments in float32; ``control`` is (4,) float32 on the device."""
    clip, _, correction_1, correction_2 = control.unbind()
    g = grad.float() * clip
    m = mean + (1 - betas[0]) * (g - mean)
    v = square + (1 - betas[1]) * (g * g - square)
    w = weight.float()
    w = w - lr * decay * w - lr * (m / correction_1 / ((v / correction_2).sqrt() + eps))
    return w, m, v


def noise_of(like: torch.Tensor, seed: int, first: int) -> torch.Tensor:
    """32 random bits for each element of a part that begins at element ``first``."""
    elements = torch.arange(first, first + like.numel(), device=like.device)
    return hashed(elements, seed).view(like.shape)


def replace(target: torch.Tensor, value: torch.Tensor, update: torch.Tensor) -> None:
    """Write ``value`` unless the update is skipped (``update`` 0, on the device)."""
    # where, not a product: a skipped update may hold NaN
    target.copy_(torch.where(update != 0, value.to(target.dtype), target))
