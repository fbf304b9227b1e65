"""This rank's part of a sharded tensor."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Shard


def local(tensor: torch.Tensor) -> torch.Tensor:
    """What this rank holds; a plain tensor is its own part."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def first_element(tensor: torch.Tensor) -> int:
    """The number, in the flat whole, of the first element of the part.

    Parts are ranges of rows, ceil(rows / ranks) each, as FSDP2 cuts them.
    """
    if not isinstance(tensor, DTensor):
        return 0
    mesh, rows = tensor.device_mesh, tensor.shape[0]
    coordinate = mesh.get_coordinate()
    assert coordinate is not None, "a rank outside the mesh holds nothing"
    first = 0
    for axis, placement in enumerate(tensor.placements):
        if isinstance(placement, Shard):
            assert placement.dim == 0 and not first, "parts are ranges of rows"
            first = min(coordinate[axis] * -(-rows // mesh.size(axis)), rows)
    return first * (tensor.numel() // max(rows, 1))
