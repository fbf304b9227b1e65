"""A tiny model and rows of uneven work: some ranks have no pictures."""

from __future__ import annotations

import numpy as np
import torch

from brim.model.batch import PackedBatch
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import random_model
from brim.train.parallel.blank import agreed
from brim.train.synthetic import Tokens, document, pack

VOCABULARY = 64
TOKENS = Tokens(60, 61, 62, 63)
BLANK = 8


def config(*, tied: bool = True) -> ModelConfig:
    text = TextConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, layers=3, heads=2, kv_heads=1,
        head_dim=16, mrope_section=(3, 3, 2),
    )  # fmt: skip
    vision = VisionConfig(
        depth=3, hidden_size=16, intermediate_size=24, heads=2, out_hidden_size=16,
        deepstack=(0, 1), positions=36,
    )  # fmt: skip
    return ModelConfig(text=text, vision=vision, tied=tied)


def model(dtype: torch.dtype = torch.float32, *, tied: bool = True) -> Qwen3VL:
    return random_model(config(tied=tied), dtype=dtype)


def row(seed: int, *, pictures: bool = True, length: int = 48) -> PackedBatch:
    """Other numbers of tokens, of labels and of patches for every seed."""
    rng = np.random.default_rng(seed)
    grids = [[(4, 4)], [(2, 4)]] if pictures else [[], []]
    documents = [
        document(rng, grid, text=3 + seed % 4, answer=2 + seed % 5, vocabulary=40, tokens=TOKENS)
        for grid in grids
    ]
    return pack(documents, length, side=6)


def batch(step: int) -> list[PackedBatch]:
    """The eight rows of a global step; the last four have no pictures, nor has the second."""
    return [row(8 * step + i, pictures=i < 4 and i != 1) for i in range(8)]


def share(
    rows: list[PackedBatch], rank: int, world: int, *, always: bool = False
) -> list[PackedBatch]:
    """Every ``world``-th row, with the tower as brim's plan agrees on it."""
    own = rows[rank::world]
    turns = [rows[i * world : (i + 1) * world] for i in range(len(own))]
    tower = [always or any(r.counts.patches for r in turn) for turn in turns]
    tower[0] = tower[-1] = True
    return agreed(own, tower, BLANK)
