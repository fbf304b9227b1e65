"""A checkpoint's weights as a Hugging Face folder, without the run's ranks or GPUs."""

from __future__ import annotations

from pathlib import Path

import torch

from brim.errors import InputError
from brim.model.config import ModelConfig
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import save
from brim.train.saving import folders, reader
from brim.train.saving.layout import DTYPES

_PREFIX = "model."


def export(checkpoint: Path, folder: Path, *, companions: Path | None = None) -> None:
    """Write ``folder`` so that transformers opens it; host memory: the model once.

    However many ranks wrote the checkpoint.  ``companions``: the folder with the tokenizer's files.
    Raises :class:`InputError` for what is no whole checkpoint, or holds adapters only.
    """
    _check(checkpoint)
    index = reader.read_index(checkpoint)
    shapes = ModelConfig.from_folder(checkpoint)
    with torch.device("meta"):
        model = Qwen3VL(shapes)
    names = [name for name, _ in model.named_parameters()]
    if any(f"{_PREFIX}{name}" not in index for name in names):
        raise InputError(
            f"{checkpoint} holds adapters without the model they belong to",
            hint="let the run come to its end: it writes the model with them merged",
        )
    dtype = next(t for t, name in DTYPES.items() if name == index[_PREFIX + names[0]]["dtype"])
    model.to(dtype=dtype).to_empty(device="cpu")
    tensors = {f"{_PREFIX}{name}": p.detach() for name, p in model.named_parameters()}
    reader.load(checkpoint, tensors)
    save(model, folder, companions=companions)


def _check(checkpoint: Path) -> None:
    if not folders.valid(checkpoint):
        raise InputError(
            f"{checkpoint} is no whole checkpoint", hint="its manifest.json says what belongs to it"
        )
    broken = folders.damaged(checkpoint)
    if broken:
        raise InputError(f"{checkpoint} is damaged: {', '.join(broken)}")
