"""Reading a checkpoint on any number of ranks: each reads the boxes that it holds.

torch's distributed checkpoint planner finds which saved pieces overlap which local shards; this is
its storage, over ``index.json`` and safetensors.  Nothing is unpickled: torch's own storage keeps
its table in ``.metadata``, a pickle, which runs whatever its author put there.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner, StorageReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from brim.errors import ConfigError, InputError
from brim.train.saving.layout import DTYPES, INDEX

PICKLES = (".metadata", ".distcp", ".pt", ".pth", ".bin", ".pkl", ".ckpt")
_TYPES = {name: dtype for dtype, name in DTYPES.items()}
Index = Mapping[str, Mapping[str, Any]]


def read_index(folder: Path) -> Index:
    """Tensor name → ``dtype, shape, pieces``.  Raises :class:`InputError`."""
    refuse_pickles(folder)
    try:
        found: Index = json.loads((folder / INDEX).read_bytes())["tensors"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / INDEX} cannot be read: {error}") from None
    for entry in found.values():
        for piece in entry["pieces"]:
            if Path(piece["file"]).name != piece["file"]:
                raise InputError(f"{folder / INDEX} names a file outside its folder")
    return found


def refuse_pickles(folder: Path) -> None:
    """Raises :class:`InputError` for a checkpoint of another program."""
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.name.endswith(PICKLES):
            raise InputError(
                f"{path} is a pickle, which can run code when it is read",
                hint="brim loads safetensors with a manifest of its own; convert the weights "
                "elsewhere and give the folder as model.path",
            )


def load(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Fill ``tensors`` (plain or DTensors) in place; each rank alone, no exchange.

    Raises :class:`ConfigError` when the checkpoint holds other tensors.
    """
    index = read_index(folder)
    _check(folder, index, tensors)
    with warnings.catch_warnings():
        # no_dist: what a rank reads concerns no other
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(
            dict(tensors),
            storage_reader=_Storage(folder, index),
            planner=DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False),
            no_dist=True,
        )


def _check(folder: Path, index: Index, tensors: Mapping[str, torch.Tensor]) -> None:
    for name, tensor in tensors.items():
        here = f"{DTYPES[tensor.dtype]} {list(tensor.shape)}"
        entry = index.get(name)
        there = f"{entry['dtype']} {list(entry['shape'])}" if entry else "nothing"
        if here != there:
            raise ConfigError(
                f"{name} is {here} in this run and {there} in {folder}",
                hint="resume with the same model, lora.r and optimizer.states, or set another "
                "output_dir",
            )


class _Storage(StorageReader):
    """A folder of safetensors as torch's distributed checkpoint storage."""

    def __init__(self, folder: Path, index: Index) -> None:
        self.folder, self.index = folder, index
        self._files = {
            MetadataIndex(name, torch.Size(piece["offsets"])): piece["file"]
            for name, entry in index.items()
            for piece in entry["pieces"]
        }

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        tables: Any = {name: _metadata(entry) for name, entry in self.index.items()}
        return Metadata(state_dict_metadata=tables)

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        by_file: dict[str, list[ReadItem]] = {}
        for item in plan.items:
            key = MetadataIndex(item.storage_index.fqn, item.storage_index.offset)
            by_file.setdefault(self._files[key], []).append(item)
        for name, items in by_file.items():
            _read(self.folder / name, items, planner)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None: ...

    def set_up_storage_reader(
        self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any
    ) -> None: ...

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return Path(checkpoint_id).is_dir()


def _metadata(entry: Mapping[str, Any]) -> TensorStorageMetadata:
    return TensorStorageMetadata(
        properties=TensorProperties(dtype=_TYPES[entry["dtype"]]),
        size=torch.Size(entry["shape"]),
        chunks=[
            ChunkStorageMetadata(torch.Size(piece["offsets"]), torch.Size(piece["sizes"]))
            for piece in entry["pieces"]
        ],
    )


def _read(path: Path, items: list[ReadItem], planner: LoadPlanner) -> None:
    try:
        with safe_open(path, framework="pt") as f:
            for item in items:
                target = planner.resolve_tensor(item).detach()
                target.copy_(_box(f, item))
                planner.commit_tensor(item, target)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path} is damaged: {error}") from None


def _box(f: Any, item: ReadItem) -> torch.Tensor:
    cuts = tuple(
        slice(start, start + length)
        for start, length in zip(item.storage_offsets, item.lengths, strict=True)
    )
    name = item.storage_index.fqn
    # a tensor without dimensions has nothing to cut
    found: torch.Tensor = f.get_slice(name)[cuts] if cuts else f.get_tensor(name)
    return found
