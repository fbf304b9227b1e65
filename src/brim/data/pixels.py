"""uint8 patches to what the tower computes with, on whatever device they are.

``x / 127.5 - 1`` is the processor's ``(x / 255 - 0.5) / 0.5`` to a rounding of float32.
"""

from __future__ import annotations

import torch


def normalize(patches: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 → values in -1..1, computed in float32 and rounded once to ``dtype``."""
    return (patches.float() / 127.5 - 1).to(dtype)


def processor_values(patches: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Stills as the transformers processors give them.

    uint8 [n, 3 · p · p] → [n, 3 · 2 · p · p]: each frame twice, for the processors show a still
    image for both moments of a temporal patch.
    """
    count, values = patches.shape
    once = normalize(patches, dtype).view(count, 3, 1, values // 3)
    return once.expand(count, 3, 2, values // 3).reshape(count, 2 * values)


def patchify(images: torch.Tensor, patch: int = 16, merge: int = 2) -> torch.Tensor:
    """uint8 [b, height, width, 3] of one size → [b · n, 3 · patch · patch].

    For pixels that reach the device unpatched (decoded there, say); the order is that of
    :func:`brim.data.indices.write_patches`.
    """
    b, height, width, channels = images.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    blocks = images.view(b, rows, merge, patch, columns, merge, patch, channels)
    return blocks.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(-1, channels * patch * patch)
