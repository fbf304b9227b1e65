"""Which rank writes which piece of which tensor, and where in its files it lies.

The pieces come from torch's distributed checkpoint planner: a sharded tensor has one on each rank
that holds a shard, a replicated one is written once, by the rank with the least to write.  Files
are safetensors; ``index.json`` says which tensor consists of which pieces, so another number of
ranks can read them, and nothing has to be unpickled.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, WriteItem

from brim.train.parallel.ranks import Ranks

SHARD_BYTES = 4 * 10**9
INDEX = "index.json"
DTYPES = {
    torch.float64: "F64", torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16",
    torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2",
}  # fmt: skip
"""safetensors' names."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a tensor; ``start`` counts bytes from the first byte of its file's data."""

    name: str
    dtype: torch.dtype
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    start: int

    @property
    def nbytes(self) -> int:
        return math.prod(self.sizes) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class File:
    """One safetensors file of one rank."""

    name: str
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its data, without the header."""
        return sum(piece.nbytes for piece in self.pieces)

    def header(self) -> bytes:
        """Everything before the data: the length of the JSON, then the JSON."""
        entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        for piece in self.pieces:
            entries[piece.name] = {
                "dtype": DTYPES[piece.dtype],
                "shape": piece.sizes,
                "data_offsets": (piece.start, piece.start + piece.nbytes),
            }
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text


@dataclass(frozen=True, slots=True)
class Layout:
    """What one rank writes."""

    files: tuple[File, ...]
    total: int
    """Bytes that all ranks write."""
    index: str = ""
    """Text of ``index.json``; on the first rank only."""


def plan(tensors: Mapping[str, torch.Tensor], ranks: Ranks) -> Layout:
    """Agree with all ranks on who writes what of ``tensors`` (plain and DTensors, flat names).

    One exchange of plans; it holds as long as names, shapes and shards stay the same.
    """
    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(dict(tensors), is_coordinator=ranks.first)
    plans = ranks.gather(planner.create_local_plan())
    layouts = _layouts(planner, plans) if ranks.first else None
    if ranks.world == 1:
        assert layouts is not None
        return layouts[0]
    own: list[Any] = [None]
    dist.scatter_object_list(own, layouts, src=0, group=ranks.host)
    layout: Layout = own[0]
    return layout


def _layouts(planner: DefaultSavePlanner, plans: list[SavePlan]) -> list[Layout]:
    agreed, _ = planner.create_global_plan(plans)
    files = [files_of(rank, plan.items) for rank, plan in enumerate(agreed)]
    shapes = {
        item.index.fqn: item.tensor_data.size
        for plan in agreed
        for item in plan.items
        if item.tensor_data is not None
    }
    total = sum(file.nbytes for of_rank in files for file in of_rank)
    index = json.dumps(_index(files, shapes))
    return [
        Layout(of_rank, total, index if rank == 0 else "") for rank, of_rank in enumerate(files)
    ]


def files_of(rank: int, items: Sequence[WriteItem]) -> tuple[File, ...]:
    """Wide types first, as safetensors wants it: then every piece is aligned without gaps."""
    boxes = [_box(item) for item in items]
    boxes.sort(key=lambda box: (-box.dtype.itemsize, box.name))
    groups: list[list[Piece]] = [[]]
    filled = 0
    for box in boxes:
        if groups[-1] and filled + box.nbytes > SHARD_BYTES:
            groups.append([])
            filled = 0
        groups[-1].append(Piece(box.name, box.dtype, box.offsets, box.sizes, filled))
        filled += box.nbytes
    return tuple(
        File(f"rank-{rank:05d}-{number:03d}.safetensors", tuple(group))
        for number, group in enumerate(groups)
        if group
    )


def _box(item: WriteItem) -> Piece:
    data = item.tensor_data
    assert data is not None, f"{item.index.fqn} is no tensor; it would be pickled"
    return Piece(
        item.index.fqn,
        data.properties.dtype,
        tuple(data.chunk.offsets),
        tuple(data.chunk.sizes),
        0,
    )


def _index(
    files: Sequence[Sequence[File]], shapes: Mapping[str, Sequence[int]]
) -> dict[str, dict[str, Any]]:
    tensors: dict[str, dict[str, Any]] = {}
    for file in (file for of_rank in files for file in of_rank):
        for piece in file.pieces:
            entry = tensors.setdefault(
                piece.name,
                {"dtype": DTYPES[piece.dtype], "shape": list(shapes[piece.name]), "pieces": []},
            )
            if piece.nbytes or not entry["pieces"]:
                box = {"file": file.name, "offsets": piece.offsets, "sizes": piece.sizes}
                entry["pieces"].append(box)
    return {"tensors": tensors}
