"""uint8 pixels to what the tower computes with, on whatever device they are.

``x / 127.5 - 1`` is the processor's ``(x / 255 - 0.5) / 0.5`` to a rounding of float32.

A row's pictures reach the device as they left the resizing, one after the other; there they are cut
into patches, normalised and cast in one pass (:mod:`brim.data.pixels_triton` on CUDA, the same in
plain torch elsewhere).  A table says where each frame lies and where its patches go, int64 [n, 8]:

===  ================================================================
0    its first byte in ``pixels``
1    its first patch in the result
2 3  its height and width, in patches
4-6  bytes from a pixel to the next row's, the next column's, the next channel's
7    its moment in the temporal patch: 0 for a still
===  ================================================================
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Protocol

import torch


def normalize(patches: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """uint8 → values in -1..1, computed in float32 and rounded once to ``dtype``."""
    if _has_triton(patches.device.type):
        from brim.data import pixels_triton

        return pixels_triton.normalize(patches, dtype)
    # by a number, CUDA multiplies with the reciprocal: one of the 256 values would round otherwise
    half = torch.full((), 127.5, device=patches.device)
    return (patches.float() / half - 1).to(dtype)


def processor_values(patches: torch.Tensor, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Stills as the transformers processors give them.

    uint8 [n, 3 · p · p] → [n, 3 · 2 · p · p]: each frame twice, for the processors show a still
    image for both moments of a temporal patch.
    """
    count, values = patches.shape
    once = normalize(patches, dtype).view(count, 3, 1, values // 3)
    return once.expand(count, 3, 2, values // 3).reshape(count, 2 * values)


@cache
def _has_triton(device: str) -> bool:
    return device == "cuda" and importlib.util.find_spec("triton") is not None


class Cut(Protocol):
    """Cuts frames into patches: :func:`reference_cut`, or the same in one launch."""

    def __call__(
        self,
        pixels: torch.Tensor,
        table: torch.Tensor,
        out: torch.Tensor,
        *,
        patch: int,
        merge: int,
        largest: int,
    ) -> None:
        """``pixels``: uint8 [bytes]; ``table``: on the same device, or on the host; ``out``:
        [patches, 3 · moments · patch · patch], uint8 for the values as they are, a floating type
        for normalised ones; ``largest``: patches of the largest frame."""


def cut(
    pixels: torch.Tensor,
    table: torch.Tensor,
    host_table: torch.Tensor,
    *,
    moments: int,
    patch: int,
    merge: int,
    dtype: torch.dtype,
) -> torch.Tensor:
    """The patches of the frames of ``table`` on the device of ``pixels``.

    [patches, 3 · moments · patch · patch]: uint8, or normalised values of a floating ``dtype``.
    ``host_table``: the same table where it can be read without waiting for a device.  Each frame
    fills one of the ``moments`` of its temporal patches.
    """
    frames = host_table[:, 2] * host_table[:, 3]
    count = int(frames.sum()) // moments
    values = 3 * moments * patch * patch
    out = torch.empty(count, values, dtype=dtype, device=pixels.device)
    if count:
        chosen = kernel(pixels.device.type, patch)
        reads_host = chosen is reference_cut
        chosen(
            pixels,
            host_table if reads_host else table,
            out,
            patch=patch,
            merge=merge,
            largest=int(frames.max()),
        )
    return out


@cache
def kernel(device: str, patch: int = 16) -> Cut:
    """What cuts on a kind of device."""
    # Triton's ranges are powers of two, so a patch of 14 × 14 goes the plain way
    if patch & (patch - 1) == 0 and _has_triton(device):
        from brim.data import pixels_triton

        return pixels_triton.cut
    return reference_cut


def reference_cut(
    pixels: torch.Tensor,
    table: torch.Tensor,
    out: torch.Tensor,
    *,
    patch: int,
    merge: int,
    largest: int,
) -> None:
    """:class:`Cut` in plain torch, a copy a frame; the order of patches and values is that of
    :func:`brim.data.indices.write_patches`."""
    raw = out if out.dtype is torch.uint8 else torch.empty_like(out, dtype=torch.uint8)
    moments = out.shape[1] // (3 * patch * patch)
    for offset, first, h, w, row, column, channel, moment in table.tolist():
        grid = (h // merge, w // merge, merge, merge)
        whole = (merge * patch * row, merge * patch * column, patch * row, patch * column)
        source = pixels.as_strided(
            (*grid, 3, patch, patch),
            (*whole, channel, row, column),
            pixels.storage_offset() + offset,
        )
        target = raw[first : first + h * w].view(*grid, 3, moments, patch, patch)
        target[..., moment, :, :].copy_(source)
    if raw is not out:
        out.copy_(normalize(raw, out.dtype))


def patchify(images: torch.Tensor, patch: int = 16, merge: int = 2) -> torch.Tensor:
    """uint8 [b, height, width, 3] of one size → [b · n, 3 · patch · patch]."""
    b, height, width, channels = images.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    blocks = images.view(b, rows, merge, patch, columns, merge, patch, channels)
    return blocks.permute(0, 1, 4, 2, 5, 7, 3, 6).reshape(-1, channels * patch * patch)
