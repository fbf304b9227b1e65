"""Many GPUs: tokens/s and MFU of each, and what of the communication is seen.

    python benchmarks/scaling.py                       1, 2, 4, 8 GPUs as far as there are any
    python benchmarks/scaling.py --worlds 1 --only 8B  one GPU, the sharded code paths too
    python benchmarks/scaling.py --dry                 tiny shapes on CPUs, gloo, 1 and 2 ranks

Minutes of a variant on an H200 with --rows 2 --steps 4: 1.5 (4B), 2 (8B), most of it compilation.
Each result is printed, and written to --json, as soon as it is known; no variant starts after
--budget seconds of a torchrun.

Each number of GPUs is one torchrun of this file, which trains the variants one after the other:
random weights, rows of synthetic photographs that are on the device before the clock starts, so
what is measured is computing and communication.  A variant warms up, is timed over all ranks, and
two more steps are profiled on rank 0: communication that no kernel runs beside is exposed.  Calls
and bytes of a step follow from sizes (a test holds them against what torch sends).  The first
variant of a size is what brim chooses by itself; the others change one setting of [parallel].  No
NCCL variable is set.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as brim train does

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from brim.diagnose.trace.device import DeviceSide
from brim.errors import BrimError
from brim.model import flops
from brim.model.batch import PackedBatch
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.kernels import DTYPES, choose, compile_blocks, installed, kernels
from brim.model.memory import RowShape
from brim.model.weights import random_model
from brim.record.kineto import read_trace
from brim.train.config import Config, ModelTable, OptimizerTable, ParallelTable
from brim.train.parallel.fit import Needs, decide, share, world_of
from brim.train.parallel.ranks import Ranks, join
from brim.train.parallel.traffic import Traffic, of_step
from brim.train.records import peak_flops
from brim.train.session import optimizer_of
from brim.train.step import TrainStep
from brim.train.synthetic import Tokens, document, pack, photographs
from brim.units import percent

Batch = list[PackedBatch]
DRY_TOKENS = Tokens(508, 509, 510, 511)


@dataclass(frozen=True)
class Variant:
    name: str
    size: str
    parallel: dict[str, Any] = field(default_factory=dict)


VARIANTS = (
    Variant("4B brim", "4B"),
    Variant("4B ddp", "4B", {"data": "ddp"}),
    Variant("4B ddp, no no_sync", "4B", {"data": "ddp", "gradient_sync": "row"}),
    Variant("4B ddp, 5 MB buckets", "4B", {"data": "ddp", "ddp_bucket_cap_mb": 5}),
    Variant("4B ddp, 200 MB buckets", "4B", {"data": "ddp", "ddp_bucket_cap_mb": 200}),
    Variant("4B ddp, no static graph", "4B", {"data": "ddp", "ddp_static_graph": False}),
    Variant("8B brim", "8B"),
    Variant("8B fsdp", "8B", {"data": "fsdp"}),
    Variant("8B fsdp, gathered again", "8B", {"data": "fsdp", "reshard_after_forward": "true"}),
    Variant("8B fsdp, no no_sync", "8B", {"data": "fsdp", "gradient_sync": "row"}),
    Variant("8B fsdp, reduced in bf16", "8B", {"data": "fsdp", "reduce_dtype": "bfloat16"}),
    Variant("8B fsdp, no prefetch", "8B", {"data": "fsdp", "prefetch": 0}),
    Variant("8B fsdp, prefetch 2", "8B", {"data": "fsdp", "prefetch": 2}),
)


def main() -> None:
    args = arguments()
    if args.worker:
        worker(args)
        return
    found: list[dict[str, Any]] = []
    for world in args.worlds or worlds(args.dry):
        with tempfile.TemporaryDirectory() as folder:
            out = args.json or Path(folder) / "results.jsonl"
            before = len(out.read_text().splitlines()) if out.exists() else 0
            command = [sys.executable, "-m", "torch.distributed.run", "--standalone",
                       "--nproc-per-node", str(world), __file__, "--worker", str(out),
                       "--rows", str(args.rows), "--steps", str(args.steps),
                       "--length", str(args.length), "--budget", str(args.budget),
                       *(["--dry"] if args.dry else []),
                       *(["--only", args.only] if args.only else [])]  # fmt: skip
            failed = subprocess.run(command, check=False).returncode
            if out.exists():
                found += [json.loads(line) for line in out.read_text().splitlines()[before:]]
            if failed:
                print(f"{world} ranks ended with {failed}", file=sys.stderr)
    show(found)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--worlds", type=int, nargs="*", help="numbers of ranks")
    parser.add_argument("--only", default="", help="variants whose name begins so")
    parser.add_argument("--rows", type=int, default=4, help="of a rank in one optimizer step")
    parser.add_argument("--steps", type=int, default=8, help="timed optimizer steps")
    parser.add_argument("--length", type=int, default=0, help="tokens of a row (12288; dry 256)")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, any machine")
    parser.add_argument("--budget", type=float, default=500, help="start no variant after, seconds")
    parser.add_argument("--json", type=Path, help="append the results to this file, a line each")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    return parser.parse_args()


def worlds(dry: bool) -> list[int]:
    if dry:
        return [1, 2]
    return [n for n in (1, 2, 4, 8) if n <= torch.cuda.device_count()]


def worker(args: argparse.Namespace) -> None:
    """One rank of one torchrun."""
    ranks = join()
    began = time.monotonic()
    for variant in VARIANTS:
        late = ranks.told(time.monotonic() - began > args.budget)  # by the first rank's clock
        if late or not variant.name.startswith(args.only):
            continue
        try:
            result = measured(variant, args, ranks)
        except (BrimError, torch.OutOfMemoryError) as error:
            # memory runs out on all ranks or on none: their rows have the same sizes
            result = {"failed": str(error).splitlines()[0]}
        except Exception as error:
            if ranks.world > 1:  # the others wait for this rank
                raise
            traceback.print_exc()
            result = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
        if ranks.first:
            line = json.dumps({"ranks": ranks.world, "variant": variant.name, **result})
            print(line, flush=True)
            with args.worker.open("a") as out:
                out.write(line + "\n")
        gc.collect()
        torch._dynamo.reset()
        if ranks.device.type == "cuda":
            torch.cuda.empty_cache()
    ranks.leave()


def measured(variant: Variant, args: argparse.Namespace, ranks: Ranks) -> dict[str, Any]:
    device, cuda = ranks.device, ranks.device.type == "cuda"
    shape = tiny() if args.dry else ModelConfig.named(variant.size)
    length = args.length or (256 if args.dry else 12_288)
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    said: list[str] = []
    step, batch, traffic = build(variant, shape, length, args, ranks, said)
    losses = [step(batch, 1e-5).loss for _ in range(3)]
    synchronize(device)
    seconds = timed(step, batch, args.steps, ranks)
    outcome = step(batch, 1e-5)
    exposed = profiled(step, batch, ranks)
    useful = sum(flops.step(shape, row.counts).total for row in batch)
    peak = peak_flops(device, "bfloat16")
    return {
        "seconds_per_step": seconds,
        "tokens_per_s_per_gpu": sum(row.counts.tokens for row in batch) / seconds,
        "mfu": useful / seconds / peak if peak else None,
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "sent_gb": sum(t.sent for t in traffic) / 1e9,
        "calls": sum(t.calls for t in traffic),
        "recompute": [step.model.recompute.text_blocks, step.model.recompute.vision_blocks],
        "loss": [losses[0].item(), outcome.loss.item()],
        "chosen": said,
        **exposed,
    }


def build(
    variant: Variant,
    shape: ModelConfig,
    length: int,
    args: argparse.Namespace,
    ranks: Ranks,
    said: list[str],
) -> tuple[TrainStep, Batch, list[Traffic]]:
    device = ranks.device
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    picked = choose(capability, installed())
    config = Config(
        model=ModelTable(random=variant.size),
        optimizer=OptimizerTable(states="bfloat16"),
        parallel=ParallelTable(**variant.parallel),
    )
    model = random_model(
        shape, dtype=DTYPES[picked.dtype.value], device=device, kernels=kernels(picked)
    )
    if picked.compile.value:
        compile_blocks(model)
    source = small_rows(shape, length) if args.dry else photographs(shape, length, bucket=1024)
    own = itertools.islice(source, ranks.rank * args.rows, (ranks.rank + 1) * args.rows)
    batch = [row.to(device) for row in own]
    # the same sizes on all ranks, as balanced rows have: what differs is waiting, not sending
    vision, scored = (max(ranks.gather(n)) for n in sizes(batch))
    row = RowShape(tokens=length, vision_rows=vision, scored=scored)
    where = world_of(ranks, args.rows)
    choice = decide(config, Needs(config, model, row), where, together=ranks.together)
    bucket = config.parallel.ddp_bucket_cap_mb
    each_row = config.parallel.gradient_sync == "row"
    traffic = of_step(model, choice, ranks.world, args.rows, bucket_mb=bucket, each_row=each_row)
    parallel = share(config, model, row, args.rows, ranks, said.append)
    step = TrainStep(model, optimizer_of(config.optimizer, model, 0), parallel=parallel)
    return step, batch, traffic


def small_rows(shape: ModelConfig, length: int) -> Iterator[PackedBatch]:
    words, side = shape.text.vocab_size, shape.vision.grid_side
    for seed in itertools.count():
        rng = np.random.default_rng(seed)
        documents = [
            document(rng, [grid], text=20, answer=20, vocabulary=words, tokens=DRY_TOKENS)
            for grid in ((4, 6), (8, 8), (6, 4), (4, 4))
        ]
        yield pack(documents, length, bucket=4, side=side)


def sizes(batch: Batch) -> tuple[int, int]:
    return max(r.vision_length for r in batch), max(r.counts.scored for r in batch)


def timed(step: TrainStep, batch: Batch, steps: int, ranks: Ranks) -> float:
    """Seconds a step, of the slowest rank."""
    synchronize(ranks.device)
    ranks.barrier()
    began = time.perf_counter()
    for _ in range(steps):
        step(batch, 1e-5)
    synchronize(ranks.device)
    return max(ranks.gather(time.perf_counter() - began)) / steps


def profiled(step: TrainStep, batch: Batch, ranks: Ranks) -> dict[str, float | None]:
    """Shares of two steps in which the device only communicates, or does nothing."""
    if ranks.device.type != "cuda":
        return {"exposed": None, "idle": None}
    kinds = torch.profiler.ProfilerActivity
    with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) as seen:
        for _ in range(2):
            step(batch, 1e-5)
        synchronize(ranks.device)
    if not ranks.first:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.rank0.json"
        seen.export_chrome_trace(str(path))
        side = DeviceSide(read_trace(path))
    found = side.lanes.time(*side.span)
    return {
        "exposed": found.exposed_comm_us / found.window_us,
        "idle": found.idle_us / found.window_us,
    }


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def tiny() -> ModelConfig:
    text = TextConfig(
        vocab_size=512, hidden_size=32, intermediate_size=48, layers=3, heads=2, kv_heads=1,
        head_dim=16, mrope_section=(3, 3, 2),
    )  # fmt: skip
    vision = VisionConfig(
        depth=3, hidden_size=16, intermediate_size=24, heads=2, out_hidden_size=32,
        deepstack=(0, 2), positions=2304,
    )  # fmt: skip
    return ModelConfig(text=text, vision=vision, tied=True)


def show(found: list[dict[str, Any]]) -> None:
    table = Table(
        "GPUs", "variant", "s/step", "tokens/s a GPU", "MFU", "exposed", "calls", "sent GB",
        "peak GiB", box=None, pad_edge=False,
    )  # fmt: skip
    for line in found:
        if "failed" in line:
            table.add_row(str(line["ranks"]), line["variant"], line["failed"])
            continue
        shares = [percent(line[n]) if line[n] is not None else "n/a" for n in ("mfu", "exposed")]
        peak = f"{line['peak_gib']:.1f}" if line["peak_gib"] else "n/a"
        table.add_row(
            str(line["ranks"]), line["variant"], f"{line['seconds_per_step']:.3f}",
            f"{line['tokens_per_s_per_gpu']:,.0f}", *shares, str(line["calls"]),
            f"{line['sent_gb']:.2f}", peak,
        )  # fmt: skip
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
