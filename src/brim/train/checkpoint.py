"""Checkpoints that a kill at any moment cannot halve, and exact resume.

::

    output_dir/checkpoints/step-00000500/
        model/              Hugging Face folder: config.json, safetensors, tokenizer files;
                            with adapters, adapter/ in PEFT's format instead
        optimizer-0.safetensors, …
        state.json          step, seeds, Python's and numpy's random states
        random.safetensors  torch's random states
        manifest.json       every file's size and CRC-32; written last

A folder without a manifest whose sizes fit is no checkpoint.  Files are written to
``step-N.tmp``, each made durable, then the manifest, then the folder is renamed and the rename made
durable.  Older ones are deleted only when ``keep`` valid ones exist.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file

from brim.errors import BrimError
from brim.files import fsync_folder, write_atomic
from brim.model.lora import load_adapter, lora_layers, save_adapter
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import load_into, save
from brim.train.adamw import AdamW
from brim.train.step import LossScale

SHARD_BYTES = 4 * 10**9
_NAME = re.compile(r"step-(\d{8})")
_MARGIN = 1.05  # free space wanted for the next checkpoint, of the size of the last


class DiskFull(BrimError):
    """A checkpoint did not fit; the run goes on with the one before."""


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(self, folder: Path, *, keep: int = 2, companions: Path | None = None) -> None:
        self.folder, self.keep, self.companions = folder, keep, companions

    def newest(self) -> Path | None:
        """The newest valid checkpoint; damaged and unfinished ones are passed over."""
        return next((path for path in reversed(self._all()) if valid(path)), None)

    def save(
        self,
        step: int,
        model: Qwen3VL,
        optimizer: AdamW,
        scale: LossScale,
        extra: Mapping[str, Any],
    ) -> Path:
        """Write the checkpoint of ``step`` finished steps.

        Raises :class:`DiskFull`, with nothing left behind, when there is no room.
        """
        target = self.folder / f"step-{step:08d}"
        if target.exists() and valid(target):
            return target
        self.folder.mkdir(parents=True, exist_ok=True)
        self._clear_unfinished()
        self._check_space()
        temporary = target.with_suffix(".tmp")
        try:
            self._write(temporary, step, model, optimizer, scale, extra)
            if target.exists():  # a damaged one of the same step
                shutil.rmtree(target)
            temporary.rename(target)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise DiskFull(f"checkpoint of step {step} not written: {error}") from error
        fsync_folder(self.folder)
        self._purge()
        return target

    @staticmethod
    def kept(path: Path) -> dict[str, Any]:
        """What ``save`` was given as ``extra``."""
        found: dict[str, Any] = json.loads((path / "state.json").read_bytes())["extra"]
        return found

    def load(
        self, path: Path, model: Qwen3VL, optimizer: AdamW, scale: LossScale
    ) -> dict[str, Any]:
        """Restore everything from ``path``; returns ``extra`` with the number of steps done."""
        state: dict[str, Any] = json.loads((path / "state.json").read_bytes())
        if lora_layers(model):
            load_adapter(model, path / "adapter")
        else:
            load_into(model, path / "model")
        names = [name for name, _ in optimizer_order(model, optimizer)]
        saved = _Lazy(sorted(path.glob("optimizer-*.safetensors")))
        optimizer.load_tensors(saved, names)
        scale.load_tensors({k: saved[f"scale.{k}"] for k in scale.tensors()})
        _set_random_states(state["random"], load_file(path / "random.safetensors"))
        return {**state["extra"], "step": state["step"]}

    def _write(
        self,
        folder: Path,
        step: int,
        model: Qwen3VL,
        optimizer: AdamW,
        scale: LossScale,
        extra: Mapping[str, Any],
    ) -> None:
        folder.mkdir()
        if lora_layers(model):
            save_adapter(model, folder / "adapter", base=str(self.companions or ""))
        else:
            save(model, folder / "model", companions=self.companions)
        names = [name for name, _ in optimizer_order(model, optimizer)]
        tensors = optimizer.tensors(names) | {f"scale.{k}": v for k, v in scale.tensors().items()}
        for number, shard in enumerate(_shards(tensors)):
            _save(shard, folder / f"optimizer-{number}.safetensors")
        python, tensors = _random_states()
        _save(tensors, folder / "random.safetensors")
        state = {"step": step, "extra": dict(extra), "random": python}
        write_atomic(folder / "state.json", json.dumps(state).encode())
        files = [p for p in sorted(folder.rglob("*")) if p.is_file()]
        manifest = {
            str(p.relative_to(folder)): {"size": p.stat().st_size, "crc32": _checksum(p)}
            for p in files
        }
        write_atomic(folder / "manifest.json", json.dumps(manifest, indent=1).encode())

    def _all(self) -> list[Path]:
        if not self.folder.is_dir():
            return []
        return sorted(p for p in self.folder.iterdir() if _NAME.fullmatch(p.name))

    def _check_space(self) -> None:
        last = self.newest()
        if last is None:
            return
        wanted = sum(p.stat().st_size for p in last.rglob("*") if p.is_file()) * _MARGIN
        free = shutil.disk_usage(self.folder).free
        if free < wanted:
            raise DiskFull(
                f"{self.folder} has {free / 1e9:.1f} GB free; a checkpoint takes "
                f"{wanted / 1e9:.1f} GB"
            )

    def _clear_unfinished(self) -> None:
        for path in self.folder.glob("step-*.tmp"):
            shutil.rmtree(path)

    def _purge(self) -> None:
        good = [path for path in self._all() if valid(path)]
        for path in good[: -self.keep]:
            # without its manifest it is no checkpoint any more, should the deletion be cut off
            (path / "manifest.json").unlink()
            shutil.rmtree(path, ignore_errors=True)


def valid(folder: Path, *, checksums: bool = False) -> bool:
    """Whether the manifest is there and every file has its size (and checksum, if asked)."""
    try:
        manifest = json.loads((folder / "manifest.json").read_bytes())
        return all(
            (folder / name).stat().st_size == entry["size"]
            and (not checksums or _checksum(folder / name) == entry["crc32"])
            for name, entry in manifest.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def optimizer_order(model: Qwen3VL, optimizer: AdamW) -> list[tuple[str, torch.Tensor]]:
    """(name, parameter) in the order of the optimizer's groups."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [(names[id(p)], p) for group in optimizer.param_groups for p in group["params"]]


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


def _shards(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    """Host copies in groups that fit in memory beside a training run."""
    shard: dict[str, torch.Tensor] = {}
    filled = 0
    for name, tensor in tensors.items():
        if shard and filled + tensor.nbytes > SHARD_BYTES:
            yield shard
            shard, filled = {}, 0
        shard[name] = tensor.detach().to("cpu", copy=True).contiguous()
        filled += tensor.nbytes
    yield shard


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    save_file(tensors, path)
    with path.open("rb+") as f:
        os.fsync(f.fileno())


def _checksum(path: Path) -> int:
    crc = 0
    with path.open("rb") as f:
        while block := f.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return crc


def _random_states() -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    tensors = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        tensors["cuda"] = torch.cuda.get_rng_state()
    python = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
    }
    return python, tensors


def _set_random_states(saved: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]) -> None:
    version, numbers, gauss = saved["python"]
    random.setstate((version, tuple(numbers), gauss))
    kind, keys, position, has_gauss, cached = saved["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(tensors["torch"])
    if "cuda" in tensors and torch.cuda.is_available():
        torch.cuda.set_rng_state(tensors["cuda"])
