"""How transformers trains on the documents of benchmarks/train_h200.py, in the same process.

    python benchmarks/train_baselines.py               4B: padded SDPA, with Liger, and brim
    python benchmarks/train_baselines.py --dry         tiny shapes, any machine

Model, optimizer (AdamW, bfloat16 moments), documents and counting are the same for all rows of the
table; only images a second are compared.  transformers gets what its users get: right-padded
batches, bfloat16, SDPA, no checkpointing if it fits, batches already on the device.  With
``--checkpointing`` it recomputes, as most published scripts do.

Minutes on an H200 for the 4B: 0.7 for each of transformers', 1.3 for brim (compilation).  A line is
printed and written as soon as a side's time is known; ratios are to the first side that ran.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")

import torch

from brim.model import flops
from brim.model.batch import RowCounts
from brim.model.config import ModelConfig
from brim.model.kernels import choose, compile_blocks, installed, kernels
from brim.model.weights import random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.step import TrainStep
from brim.train.synthetic import Document, pack, padded, photograph_documents

BF16_PEAK = 989e12


def transformers_step(
    config: ModelConfig, args: argparse.Namespace, device: torch.device, *, liger: bool
) -> Callable[[list[Document]], torch.Tensor]:
    """A training step on padded batches of ``args.batch`` documents."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    if liger:
        from liger_kernel.transformers import apply_liger_kernel_to_qwen3_vl

        apply_liger_kernel_to_qwen3_vl()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    theirs = Qwen3VLConfig(**{**config.to_hf(), **(dry_ids() if args.dry else {})})
    theirs._attn_implementation = "sdpa"
    torch.set_default_dtype(dtype)
    with torch.device(device):
        model = Qwen3VLForConditionalGeneration(theirs)
    torch.set_default_dtype(torch.float32)
    model.train()
    if args.checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=device.type == "cuda")
    batches: dict[int, list[dict[str, torch.Tensor]]] = {}

    def step(documents: list[Document]) -> torch.Tensor:
        if id(documents) not in batches:  # made before the clock starts
            chunks = [documents[i : i + args.batch] for i in range(0, len(documents), args.batch)]
            batches[id(documents)] = [on(device, padded(chunk)) for chunk in chunks]
        parts = batches[id(documents)]
        total = torch.zeros((), device=device)
        for batch in parts:
            loss = model(**batch, use_cache=False).loss / len(parts)
            loss.backward()
            total += loss.detach()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return total

    return step


def dry_ids() -> dict[str, int]:
    from train_h200 import DRY_TOKENS

    return {
        "image_token_id": DRY_TOKENS.image_pad,
        "video_token_id": DRY_TOKENS.video_pad,
        "vision_start_token_id": DRY_TOKENS.start,
        "vision_end_token_id": DRY_TOKENS.end,
    }


def on(device: torch.device, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: tensor.to(device) for name, tensor in batch.items()}


def brim_step(
    config: ModelConfig, args: argparse.Namespace, device: torch.device
) -> Callable[[list[Document]], torch.Tensor]:
    capability = torch.cuda.get_device_capability() if device.type == "cuda" else None
    picked = choose(capability, installed())
    dtype = torch.bfloat16 if capability else torch.float32
    model = random_model(config, dtype=dtype, device=device, kernels=kernels(picked))
    if picked.compile.value:
        compile_blocks(model)
    groups = decay_groups(model.named_parameters(), 0.0)
    optimizer = AdamW(groups, masters=False, state_dtype=torch.bfloat16)
    train = TrainStep(model, optimizer)
    rows: dict[int, Any] = {}

    def step(documents: list[Document]) -> torch.Tensor:
        if id(documents) not in rows:
            side = config.vision.grid_side
            rows[id(documents)] = pack(documents, args.length, bucket=128, side=side).to(device)
        return train([rows[id(documents)]], 1e-5).loss

    return step


def measure(
    name: str,
    step: Callable[[list[Document]], torch.Tensor],
    data: list[list[Document]],
    config: ModelConfig,
    args: argparse.Namespace,
) -> dict[str, Any]:
    for documents in data:
        step(documents)
    synchronize()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    done = [data[i % len(data)] for i in range(args.steps)]
    for documents in done:
        loss = step(documents)
    synchronize()
    seconds = time.perf_counter() - began
    useful = sum(flops.step(config, counts(documents)).total for documents in done)
    images = sum(len(d.frames) for documents in done for d in documents)
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else None
    return {
        "name": name,
        "images_per_s": images / seconds,
        "mfu": useful / seconds / BF16_PEAK,
        "seconds_per_step": seconds / args.steps,
        "peak_gib": peak,
        "loss": loss.item(),
    }


def counts(documents: list[Document]) -> RowCounts:
    """The useful work in documents, however they are batched."""
    length = sum(len(d) for d in documents)
    return pack(documents, length, bucket=4).counts


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", default="4B")
    parser.add_argument("--only", default="transformers,transformers+liger,brim")
    parser.add_argument("--length", type=int, default=12_288, help="tokens of brim's row")
    parser.add_argument("--batch", type=int, default=8, help="documents of a padded batch")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--checkpointing", action="store_true")
    parser.add_argument("--budget", type=float, default=300, help="start no side after, seconds")
    parser.add_argument("--out", default="", help="a file for the results as JSON lines")
    parser.add_argument("--dry", action="store_true")
    return parser.parse_args()


def main() -> int:
    args = arguments()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if args.dry:
        sys.path.insert(0, str(Path(__file__).parent))
        from train_h200 import small_documents, tiny

        config, args.length = tiny(), 512
        data = [small_documents(config, seed) for seed in range(2)]
    else:
        config = ModelConfig.named(args.size)
        data = [photograph_documents(config, args.length, seed=seed) for seed in range(3)]
    makers: dict[str, Callable[[], Any]] = {
        "transformers": lambda: transformers_step(config, args, device, liger=False),
        "transformers+liger": lambda: transformers_step(config, args, device, liger=True),
        "brim": lambda: brim_step(config, args, device),
    }
    began = time.monotonic()
    results: list[dict[str, Any]] = []
    for name in args.only.split(","):
        if time.monotonic() - began > args.budget:
            print(f"{name}: not run, out of time", flush=True)
            continue
        try:
            results.append(measure(name, makers[name](), data, config, args))
        except Exception:  # one side's failure must not cost the others
            traceback.print_exc()
            print(f"{name}: failed", flush=True)
            empty(device)
            continue
        print(json.dumps(results[-1]), flush=True)
        if args.out:
            with Path(args.out).open("a") as f:
                f.write(json.dumps(results[-1]) + "\n")
        empty(device)
    for r in results:
        ratio = r["images_per_s"] / results[0]["images_per_s"]
        print(
            f"{r['name']:22} {r['images_per_s']:8.2f} images/s {r['mfu']:7.1%} MFU "
            f"{ratio:6.2f}x {results[0]['name']}"
        )
    return 0


def empty(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


if __name__ == "__main__":
    sys.exit(main())
