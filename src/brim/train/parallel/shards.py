"""This rank's part of a sharded tensor."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds; a plain tensor is its own part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_element(tensor: torch.Tensor) -> int:
    """The number, in the flat whole, of the first element of the part; parts are ranges of rows."""
    if not isinstance(tensor, DTensor):
        return 0
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

    _, offset = compute_local_shape_and_global_offset(
        tensor.shape, tensor.device_mesh, tensor.placements
    )
    return int(offset[0]) * (tensor.numel() // max(tensor.shape[0], 1))
