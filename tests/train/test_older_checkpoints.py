from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from brim.errors import ConfigError
from brim.model.weights import save
from brim.train.checkpoint import optimizer_order, state_tensors
from brim.train.loop import Trainer
from brim.train.saving import older

Make = Callable[..., Trainer]


def write_first_format(trainer: Trainer, step: int) -> Path:
    """As brim 0.1 wrote checkpoints: a model's folder, whole tensors, a flat manifest."""
    path = trainer.checkpoints.folder / f"step-{step:08d}"
    path.mkdir(parents=True)
    save(trainer.model, path / "model")
    optimizer, scale = trainer.step.optimizer, trainer.step.scale
    names = [name for name, _ in optimizer_order(trainer.model, optimizer)]
    tensors = optimizer.tensors(names) | {f"scale.{k}": v for k, v in scale.tensors().items()}
    save_file({n: t.contiguous() for n, t in tensors.items()}, path / "optimizer-0.safetensors")
    save_file({"torch": torch.get_rng_state()}, path / "random.safetensors")
    version, numbers, gauss = random.getstate()
    kind, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    states = {
        "python": [version, list(numbers), gauss],
        "numpy": [kind, np.asarray(keys).tolist(), position, has_gauss, cached],
    }
    extra = {"lr_factor": 0.5, "data": trainer.rows.identity()}
    state = {"step": step, "extra": extra, "random": states}
    (path / "state.json").write_text(json.dumps(state))
    files = {str(p.relative_to(path)): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    manifest = {n: {"size": len(data), "crc32": zlib.crc32(data)} for n, data in files.items()}
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_a_checkpoint_of_the_first_format_is_found_and_continued(make_trainer: Make) -> None:
    trainer, other = make_trainer(4), make_trainer(4)
    for step in range(2):
        trainer.step(trainer.rows.fetch(step), 1e-2)
    path = write_first_format(trainer, 2)
    random.seed(3)
    expected = torch.rand(()).item()
    assert other.checkpoints.newest() == path and older.is_older(path)
    state = other.checkpoints.load(path, other.model, other.step.optimizer, other.step.scale)
    assert state == {"lr_factor": 0.5, "data": "tiny", "step": 2}
    ours = state_tensors(trainer.model, trainer.step.optimizer, trainer.step.scale)
    theirs = state_tensors(other.model, other.step.optimizer, other.step.scale)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert torch.rand(()).item() == expected
    assert other.run() and not older.is_older(other.checkpoints.folder / "step-00000004")


def test_a_sharded_model_cannot_read_it_and_says_what_to_do(
    make_trainer: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_trainer(4)
    path = write_first_format(trainer, 1)
    monkeypatch.setattr(torch.nn.Parameter, "to_local", lambda self: self, raising=False)
    with pytest.raises(ConfigError, match=r"earlier version, for one rank\n  resume it on one"):
        trainer.checkpoints.load(path, trainer.model, trainer.step.optimizer, trainer.step.scale)
