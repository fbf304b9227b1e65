"""A run of a tiny model on any number of ranks: eight rows a step, whoever computes them."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tests.train.parallel import tiny

from brim.data.config import DataConfig
from brim.model.batch import PackedBatch
from brim.model.flops import Trained
from brim.train.adamw import AdamW, decay_groups
from brim.train.checkpoint import Checkpoints
from brim.train.config import Config, ModelTable, OptimizerTable, ParallelTable, TrainTable
from brim.train.loop import Trainer
from brim.train.parallel.choose import World, choose
from brim.train.parallel.ranks import Ranks
from brim.train.parallel.wrap import wrap
from brim.train.records import Records
from brim.train.saving.client import COMMAND
from brim.train.step import TrainStep

ROWS = 8
"""Of a step, over all ranks."""
Hook = Callable[[int, int], None]
"""Called with (rank, step) when rows are fetched."""


class SharedRows:
    """The same eight rows in every step of the same number."""

    def __init__(
        self, ranks: Ranks, steps: int, rows: int = ROWS, hook: Hook | None = None
    ) -> None:
        self._ranks, self._steps, self._rows, self._hook = ranks, steps, rows, hook

    def steps(self) -> int:
        return self._steps

    def fetch(self, step: int) -> Sequence[PackedBatch]:
        if self._hook is not None:
            self._hook(self._ranks.rank, step)
        rows = tiny.batch(step)[: self._rows]
        return tiny.share(rows, self._ranks.rank, self._ranks.world)

    def evaluation(self) -> Iterator[PackedBatch]:
        return iter(())

    def identity(self) -> str:
        return "eight rows"


def trainer(
    ranks: Ranks,
    output: Path,
    *,
    steps: int,
    data: str = "ddp",
    rows: int = ROWS,
    moments: str = "float32",
    hook: Hook | None = None,
    writer: Sequence[str] = COMMAND,
    said: list[str] | None = None,
    **train: Any,
) -> Trainer:
    """``data``: as ``parallel.data``; one rank is alone whatever it says."""
    table = ParallelTable(data=data if ranks.world > 1 else "auto")
    config = Config(
        output_dir=str(output),
        model=ModelTable(random="4B"),
        optimizer=OptimizerTable(learning_rate=1e-2, warmup_ratio=0.0),
        train=TrainTable(**{"save_steps": 0, "hang_timeout_s": 0.0, **train}),
        data=DataConfig(),
    )
    model = tiny.model()
    world = World(ranks=ranks.world, on_a_host=ranks.world, rows=rows // ranks.world, room=None)
    parallel = wrap(model, ranks, table, choose(table, world, lambda _: 0))
    optimizer = AdamW(
        decay_groups(model.named_parameters(), 0.1), state_dtype=getattr(torch, moments)
    )
    return Trainer(
        config,
        model,
        TrainStep(model, optimizer, parallel=parallel),
        SharedRows(ranks, steps, rows, hook),
        Checkpoints(output / "checkpoints", ranks=ranks, writer=writer),
        Records(output / "records", ["brim", "train"], ranks.device, ranks=ranks),
        trained=Trained(),
        say=(said if said is not None else []).append,
    )


def run(ranks: Ranks, output: str, options: dict[str, Any]) -> tuple[bool, list[str]]:
    """Train; whether it came to its end, and what this rank said."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    said: list[str] = []
    finished = trainer(ranks, Path(output), said=said, **options).run()
    return finished, said


def losses(output: Path, rank: int = 0) -> list[list[float]]:
    """The losses of each start of a run, as that rank recorded them; NaN as None."""
    starts = []
    for path in sorted(output.glob(f"records/*/steps.rank{rank}.jsonl")):
        lines = [json.loads(line) for line in path.read_text().splitlines() if line[-1:] == "}"]
        starts.append([line["loss"] for line in lines if "loss" in line])
    return starts


@dataclass(frozen=True)
class AsksToStop:
    """A signal that reaches one rank as it fetches the rows of a step."""

    at: int
    who: int
    number: int = signal.SIGTERM

    def __call__(self, rank: int, step: int) -> None:
        if (rank, step) == (self.who, self.at):
            os.kill(os.getpid(), self.number)


@dataclass(frozen=True)
class IsSlow:
    """Rows that come late on one rank."""

    who: int
    seconds: float

    def __call__(self, rank: int, step: int) -> None:
        if rank == self.who:
            time.sleep(self.seconds)
