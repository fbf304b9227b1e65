"""Low-rank adapters (arXiv 2106.09685) on the text blocks' linear layers, in PEFT's file format.

A fused matrix holds several published layers, and each has an adapter of its own, so an adapter
that was trained here opens in PEFT and the other way round.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

from brim.errors import InputError
from brim.files import write_atomic
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import slots

TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_PREFIX = "base_model.model."


@dataclass(frozen=True, slots=True)
class Part:
    """Output rows of a fused matrix that are one published layer."""

    name: str
    """Published name without ``.weight``."""
    start: int
    stop: int


class LoraLinear(nn.Linear):
    """A frozen matrix with an adapter for each of its parts: W x + scale · B_i (A_i x)."""

    def __init__(self, base: nn.Linear, parts: list[Part], rank: int, scale: float) -> None:
        super().__init__(base.in_features, base.out_features, bias=False, device="meta")
        self.weight = base.weight
        self.parts, self.rank, self.scale = parts, rank, scale
        like = {"dtype": base.weight.dtype, "device": base.weight.device}
        self.lora_a = nn.Parameter(torch.empty(len(parts) * rank, base.in_features, **like))
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank, **like))

    def reset(self, generator: torch.Generator) -> None:
        """PEFT's start: A uniform within ±1/√in, B zero."""
        bound = 1 / math.sqrt(self.in_features)
        with torch.no_grad():
            self.lora_a.uniform_(-bound, bound, generator=generator)
            self.lora_b.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        low = F.linear(x, self.lora_a).split(self.rank, dim=-1)
        matrices = [self.lora_b[part.start : part.stop] for part in self.parts]
        added = [F.linear(y, b) for y, b in zip(low, matrices, strict=True)]
        return F.linear(x, self.weight) + self.scale * torch.cat(added, dim=-1)

    def adapters(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """(published layer, A (rank, in), B (out, rank)), views."""
        for a, part in zip(self.lora_a.split(self.rank), self.parts, strict=True):
            yield part.name, a, self.lora_b[part.start : part.stop]


def add_lora(model: Qwen3VL, rank: int, alpha: float, *, seed: int = 0) -> None:
    """Freeze the whole model and give every linear layer of the text blocks an adapter."""
    model.requires_grad_(False)
    device = model.embedding.weight.device
    empty = device.type == "meta"  # sizes only: nothing to fill
    generator = None if empty else torch.Generator(device).manual_seed(seed)
    parts = _parts(model)
    for name, found in parts.items():
        parent, _, child = name.rpartition(".")
        owner = model.get_submodule(parent)
        layer = LoraLinear(getattr(owner, child), found, rank, alpha / rank)
        if generator is not None:
            layer.reset(generator)
        layer.weight.requires_grad_(False)
        setattr(owner, child, layer)


def _parts(model: Qwen3VL) -> dict[str, list[Part]]:
    """Our linear layer → the published layers in it."""
    found: dict[str, list[Part]] = {}
    rows = {name: p.shape[0] for name, p in model.named_parameters()}
    for published, slot in slots(model.config).items():
        layer = published.removesuffix(".weight")
        if layer.rpartition(".")[2] in TARGETS and not slot.turned:  # experts have no adapters
            stop = rows[slot.parameter] if slot.stop is None else slot.stop
            owner = slot.parameter.removesuffix(".weight")
            found.setdefault(owner, []).append(Part(layer, slot.start, stop))
    return found


def lora_layers(model: Qwen3VL) -> list[LoraLinear]:
    return [module for module in model.modules() if isinstance(module, LoraLinear)]


def adapter_tensors(model: Qwen3VL) -> dict[str, torch.Tensor]:
    """PEFT's names → tensors."""
    found = {}
    for layer in lora_layers(model):
        for name, a, b in layer.adapters():
            found[f"{_PREFIX}{name}.lora_A.weight"] = a
            found[f"{_PREFIX}{name}.lora_B.weight"] = b
    return found


def save_adapter(model: Qwen3VL, folder: Path, *, base: str) -> None:
    """A PEFT folder; ``base`` is the name or path of the model under the adapters."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = adapter_tensors(model)
    host = {name: t.detach().to("cpu").contiguous() for name, t in tensors.items()}
    save_file(host, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_atomic(
        folder / "adapter_config.json", json.dumps(_config(model, base), indent=2).encode()
    )


def load_adapter(model: Qwen3VL, folder: Path) -> None:
    """Fill the adapters of ``model`` from a PEFT folder."""
    saved = load_file(folder / "adapter_model.safetensors")
    tensors = adapter_tensors(model)
    if set(saved) != set(tensors):
        odd = sorted(set(saved) ^ set(tensors))
        raise InputError(
            f"{folder} holds other adapters than this run has: {', '.join(odd[:3])}",
            hint=f"adapters sit on {', '.join(TARGETS)} of every text layer",
        )
    with torch.no_grad():
        for name, tensor in tensors.items():
            if tensor.shape != saved[name].shape:
                raise InputError(f"{folder}: {name} has the shape {tuple(saved[name].shape)}")
            tensor.copy_(saved[name])


def merge(model: Qwen3VL) -> None:
    """Add the adapters into their matrices and start them anew from zero."""
    with torch.no_grad():
        for layer in lora_layers(model):
            for (_, a, b), part in zip(layer.adapters(), layer.parts, strict=True):
                rows = layer.weight[part.start : part.stop]
                rows.copy_(rows.float() + layer.scale * (b.float() @ a.float()))
            layer.lora_b.zero_()


def _config(model: Qwen3VL, base: str) -> dict[str, Any]:
    layer = lora_layers(model)[0]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": layer.rank,
        "lora_alpha": layer.scale * layer.rank,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(TARGETS),
        "inference_mode": True,
    }
