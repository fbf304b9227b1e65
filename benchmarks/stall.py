#!/usr/bin/env python
"""What checkpoints cost a run: the stall of a step, and from a restart to the first step.

    python benchmarks/stall.py                                     # a small model, this machine
    python benchmarks/stall.py --model 4B --states bfloat16 --every 30 --budget 240
    torchrun --nproc-per-node 8 benchmarks/stall.py --model 8B --states bfloat16

Steps are timed with and without a checkpoint every ``--every`` of them, in turn, so that a drift of
the machine meets both.  On a CUDA device the clock stops when the device is done.  The restart is
timed in this process: a new model, the newest checkpoint found, checked and loaded, one step.

Each pair of stretches is printed at once; no pair begins that might not end within --budget.  On an
H200 a 4B compiles for 60 s, and a pair of 30 steps takes 50 s and what writing 26 GB does.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brim.model import kernels
from brim.model.batch import PackedBatch
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.checkpoint import Checkpoints
from brim.train.config import ParallelTable
from brim.train.parallel.choose import World, choose
from brim.train.parallel.ranks import Ranks, join
from brim.train.parallel.wrap import wrap
from brim.train.saving import folders
from brim.train.step import TrainStep
from brim.train.synthetic import Tokens, document, pack, photographs

SMALL = ModelConfig(
    text=TextConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=512, layers=6, heads=4, kv_heads=2,
        head_dim=64, mrope_section=(12, 10, 10),
    ),
    vision=VisionConfig(
        depth=2, hidden_size=64, intermediate_size=128, heads=2, out_hidden_size=256,
        deepstack=(1,), positions=36,
    ),
    tied=True,
)  # fmt: skip
"""4.8 million parameters: 58 MB of weights and moments, and a step of some tens of milliseconds."""


class Run:
    """A model that trains on synthetic rows."""

    def __init__(self, args: argparse.Namespace, ranks: Ranks, folder: Path) -> None:
        self.ranks = ranks
        cuda = ranks.device.type == "cuda"
        config = SMALL if args.model == "small" else ModelConfig.named(args.model)
        dtype = torch.bfloat16 if cuda else torch.float32
        picked = kernels.choose(
            torch.cuda.get_device_capability(ranks.device) if cuda else None, kernels.installed()
        )
        self.model: Qwen3VL = random_model(
            config, dtype=dtype, device=ranks.device, kernels=kernels.kernels(picked)
        )
        if picked.compile.value:
            kernels.compile_blocks(self.model)
        table = ParallelTable(data=args.data)
        world = World(ranks=ranks.world, on_a_host=ranks.local_world, rows=1, room=None)
        parallel = wrap(self.model, ranks, table, choose(table, world, lambda _: 0))
        masters = args.states == "float32"
        optimizer = AdamW(
            decay_groups(self.model.named_parameters(), 0.0),
            masters=masters,
            state_dtype=torch.float32 if masters else torch.bfloat16,
        )
        self.step = TrainStep(self.model, optimizer, parallel=parallel)
        self.checkpoints = Checkpoints(folder, ranks=ranks)
        self.begun: list[float] = []
        """Seconds for which each save held the host."""

    def prepare(self) -> None:
        self.checkpoints.prepare(self.model, self.step.optimizer, self.step.scale)

    def steps(self, row: PackedBatch, count: int, done: int, save: bool) -> float:
        """Seconds of ``count`` steps, a checkpoint begun after the first if ``save``."""
        self._wait()
        began = time.perf_counter()
        for number in range(count):
            self.step([row], 1e-6)
            if save and number == 0:
                before = time.perf_counter()
                self.checkpoints.start(
                    done, self.model, self.step.optimizer, self.step.scale, {"benchmark": True}
                )
                self.begun.append(time.perf_counter() - before)
            self.checkpoints.progress()
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        if self.ranks.device.type == "cuda":
            torch.cuda.synchronize()
        self.ranks.barrier()


def row_for(args: argparse.Namespace, run: Run) -> PackedBatch:
    if args.model != "small":
        return next(photographs(run.model.config, args.tokens)).to(run.ranks.device)
    tokens = Tokens(4092, 4093, 4094, 4095)
    text = document(
        np.random.default_rng(0), [(4, 4)], text=40, answer=40, vocabulary=4000, tokens=tokens
    )
    return pack([text], 96, side=6).to(run.ranks.device)


def restart(
    args: argparse.Namespace, ranks: Ranks, folder: Path, row: PackedBatch
) -> dict[str, float]:
    """Seconds of the parts of a restart."""
    marks = [time.perf_counter()]
    run = Run(args, ranks, folder)
    marks.append(time.perf_counter())
    newest = run.checkpoints.newest()
    assert newest is not None
    marks.append(time.perf_counter())
    run.checkpoints.load(newest, run.model, run.step.optimizer, run.step.scale)
    marks.append(time.perf_counter())
    run.steps(row, 1, 0, save=False)
    marks.append(time.perf_counter())
    parts = zip(("model", "checked", "loaded", "first_step"), marks, marks[1:], strict=False)
    return {name: round(after - before, 3) for name, before, after in parts}


def tell(result: dict[str, Any], args: argparse.Namespace, ranks: Ranks) -> None:
    if ranks.first:
        print(json.dumps(result, indent=1), flush=True)
        if args.out:
            args.out.write_text(json.dumps(result))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="small", help="small, 2B, 4B, 8B or 32B")
    parser.add_argument("--states", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--data", default="auto", choices=("auto", "ddp", "fsdp"))
    parser.add_argument("--tokens", type=int, default=12_288)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=3, help="of stretches with and without")
    parser.add_argument("--budget", type=float, default=600, help="seconds for all pairs")
    parser.add_argument("--out", type=Path, help="a file for the result as JSON")
    parser.add_argument(
        "--folder", type=Path, help="where checkpoints go; default: a temporary one"
    )
    args = parser.parse_args()
    ranks = join()
    folder = args.folder or Path(ranks.told(tempfile.mkdtemp(prefix="brim-stall-")))
    run = Run(args, ranks, folder)
    row = row_for(args, run)
    began = time.perf_counter()
    run.prepare()
    prepared = time.perf_counter() - began
    run.steps(row, 3, 0, save=False)
    plain, saving, written = [], [], []
    start = time.perf_counter()
    for pair in range(args.pairs):
        one = (time.perf_counter() - start) / max(pair, 1)
        if pair and ranks.told(time.perf_counter() - start + one > args.budget):
            break
        plain.append(run.steps(row, args.every, 0, save=False))
        saving.append(run.steps(row, args.every, 1 + pair, save=True))
        began = time.perf_counter()
        run.checkpoints.finish()
        written.append(time.perf_counter() - began)
        if ranks.first:
            print(
                f"pair {pair + 1}: {plain[-1]:.2f} s without, {saving[-1]:.2f} s with a save, "
                f"{written[-1]:.2f} s more until it was written", flush=True,
            )  # fmt: skip
    newest = run.checkpoints.newest()
    assert newest is not None
    run.checkpoints.close()
    ratio = statistics.median(s / p for s, p in zip(saving, plain, strict=True))
    result = {
        "model": args.model, "ranks": ranks.world, "device": str(ranks.device.type),
        "bytes": folders.size(newest), "every": args.every,
        "step_s": round(statistics.median(plain) / args.every, 4),
        "stall_share": round(ratio - 1, 4),
        "stall_s": round((ratio - 1) * statistics.median(plain), 4),
        "spread": [round(s / p - 1, 4) for s, p in zip(saving, plain, strict=True)],
        "begin_s": round(statistics.median(run.begun), 4),
        "prepare_s": round(prepared, 3),
        "wait_after_s": round(statistics.median(written), 3),
    }  # fmt: skip
    tell(result, args, ranks)
    del run
    result["restart_s"] = restart(args, ranks, folder, row)
    tell(result, args, ranks)
    ranks.barrier()
    if ranks.first and not args.folder:
        shutil.rmtree(folder)
    ranks.leave()


if __name__ == "__main__":
    main()
