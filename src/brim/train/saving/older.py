"""Checkpoints of the first format: a Hugging Face folder, and the optimizer's whole tensors."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from brim.errors import ConfigError
from brim.model.lora import load_adapter, lora_layers
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import load_into
from brim.train.adamw import AdamW
from brim.train.saving.layout import INDEX
from brim.train.step import LossScale


def is_older(path: Path) -> bool:
    return not (path / INDEX).exists()


def load(
    path: Path, states: Mapping[str, Any], model: Qwen3VL, optimizer: AdamW, scale: LossScale
) -> None:
    """``states``: Python's and numpy's random states.  Raises ConfigError for a sharded model."""
    names = {id(p): name for name, p in model.named_parameters()}
    if any(hasattr(p, "to_local") for p in model.parameters()):
        raise ConfigError(
            f"{path} was written by an earlier version, for one rank",
            hint="resume it on one rank up to its next checkpoint, which any number can read",
        )
    if lora_layers(model):
        load_adapter(model, path / "adapter")
    else:
        load_into(model, path / "model")
    saved = _Lazy(sorted(path.glob("optimizer-*.safetensors")))
    order = [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
    optimizer.load_tensors(saved, order)
    scale.load_tensors({kind: saved[f"scale.{kind}"] for kind in scale.tensors()})
    _set_random_states(states, load_file(path / "random.safetensors"))


class _Lazy(Mapping[str, torch.Tensor]):
    """Tensors of several files, read one at a time."""

    def __init__(self, files: list[Path]) -> None:
        self._where: dict[str, Path] = {}
        for path in files:
            with safe_open(path, framework="pt") as f:
                self._where |= dict.fromkeys(f.keys(), path)

    def __getitem__(self, name: str) -> torch.Tensor:
        with safe_open(self._where[name], framework="pt") as f:
            tensor: torch.Tensor = f.get_tensor(name)
            return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._where)

    def __len__(self) -> int:
        return len(self._where)


def _set_random_states(saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
