"""A tiny model, rows for it, and a run made of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from brim.data.config import DataConfig
from brim.model.batch import PackedBatch
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.flops import Trained
from brim.model.weights import random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.checkpoint import Checkpoints
from brim.train.config import Config, ModelTable, OptimizerTable, TrainTable
from brim.train.loop import Trainer
from brim.train.records import Records
from brim.train.step import TrainStep
from brim.train.synthetic import Tokens, document, pack

VOCABULARY = 64
TOKENS = Tokens(60, 61, 62, 63)


def tiny_config(tied: bool = True) -> ModelConfig:
    text = TextConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, layers=2, heads=2, kv_heads=1,
        head_dim=16, mrope_section=(3, 3, 2),
    )  # fmt: skip
    vision = VisionConfig(
        depth=2, hidden_size=16, intermediate_size=24, heads=2, out_hidden_size=16,
        deepstack=(0,), positions=36,
    )  # fmt: skip
    return ModelConfig(text=text, vision=vision, tied=tied)


def tiny_row(seed: int, length: int = 48) -> PackedBatch:
    """A row that a tiny model can learn: its words are few."""
    rng = np.random.default_rng(seed)
    documents = [
        document(rng, grids, text=5, answer=6, vocabulary=20, tokens=TOKENS)
        for grids in ([(4, 4)], [], [(2, 4)])
    ]
    return pack(documents, length, side=6)


class TinyRows:
    """Rows made from their step's number."""

    def __init__(self, steps: int, per_step: int = 1) -> None:
        self._steps, self.per_step = steps, per_step
        self.fetched: list[int] = []

    def steps(self) -> int:
        return self._steps

    def fetch(self, step: int) -> Sequence[PackedBatch]:
        self.fetched.append(step)
        return [tiny_row(step * self.per_step + i) for i in range(self.per_step)]

    def identity(self) -> str:
        return "tiny"

    def evaluation(self) -> Iterator[PackedBatch]:
        yield from (tiny_row(1000), tiny_row(1001))


@pytest.fixture
def make_trainer(tmp_path: Path) -> Callable[..., Trainer]:
    """(steps, output folder, dtype, **train table) → a fresh trainer with its records."""

    def make(
        steps: int = 4,
        output: str = "out",
        dtype: torch.dtype = torch.float32,
        rows: Any = None,
        masters: bool = True,
        **train: Any,
    ) -> Trainer:
        config = Config(
            output_dir=str(tmp_path / output),
            model=ModelTable(random="4B"),
            optimizer=OptimizerTable(learning_rate=1e-2, warmup_ratio=0.0),
            train=TrainTable(**{"save_steps": 0, **train}),
            data=DataConfig(),
        )
        model = random_model(tiny_config(), dtype=dtype)
        optimizer = AdamW(
            decay_groups(model.named_parameters(), 0.1),
            masters=masters,
            state_dtype=torch.float32 if masters else torch.bfloat16,
        )
        folder = tmp_path / output
        said: list[str] = []
        trainer = Trainer(
            config,
            model,
            TrainStep(model, optimizer),
            rows or TinyRows(steps),
            Checkpoints(folder / "checkpoints"),
            Records(folder / "records", ["brim", "train"], torch.device("cpu")),
            trained=Trained(),
            say=said.append,
        )
        trainer.said = said  # type: ignore[attr-defined]
        return trainer

    return make


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in trainer.model.named_parameters()}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Bits are compared with those of child processes: both must sum in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
