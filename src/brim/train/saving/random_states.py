"""Python's, numpy's and torch's random states as tensors, each rank's under its own name."""

from __future__ import annotations

import random
from collections.abc import Mapping

import numpy as np
import torch


def capture(rank: int) -> dict[str, torch.Tensor]:
    """Name → state, on the host."""
    version, numbers, gauss = random.getstate()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    found = {
        "python": torch.tensor([version, *numbers], dtype=torch.int64),
        "python_gauss": torch.tensor(
            [float("nan") if gauss is None else gauss], dtype=torch.float64
        ),
        "numpy": torch.from_numpy(np.asarray([*keys, position, has_gauss], np.int64)),
        "numpy_gauss": torch.tensor([cached], dtype=torch.float64),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        found["cuda"] = torch.cuda.get_rng_state()
    return {f"random.{rank:05d}.{kind}": state for kind, state in found.items()}


def restore(saved: Mapping[str, torch.Tensor], rank: int) -> None:
    """What :func:`capture` gave for ``rank``."""
    states = {kind: saved[f"random.{rank:05d}.{kind}"] for kind in _kinds(saved, rank)}
    version, *numbers = states["python"].tolist()
    gauss = float(states["python_gauss"])
    random.setstate((version, tuple(numbers), None if gauss != gauss else gauss))
    *keys, position, has_gauss = states["numpy"].tolist()
    cached = float(states["numpy_gauss"])
    np.random.set_state(("MT19937", np.array(keys, np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def _kinds(saved: Mapping[str, torch.Tensor], rank: int) -> list[str]:
    start = f"random.{rank:05d}."
    return [name.removeprefix(start) for name in saved if name.startswith(start)]
