"""Do cheaper numbers train as well?  Loss curves of one model under several precisions.

    python benchmarks/train_quality.py                  300 steps, one GPU, about four minutes
    python benchmarks/train_quality.py --dry --steps 8  tiny shapes, any machine

The model has the widths of the 4B and few layers; data and order are the same for all.  Texts are
sequences that a model can learn (each token is an affine function of the one before, with
parameters named in the prompt or shown by the picture's brightness), so the loss falls far.

float32     weights, products (no TF32) and moments in float32: the reference
bfloat16    bfloat16 weights with float32 masters and moments
rounded     bfloat16 weights and moments, stochastic rounding, no masters
plain       bfloat16 weights and moments, rounded to nearest: what the rounding prevents
fp8         as rounded, linear layers of the text blocks in FP8 (tensorwise)
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brim.model.batch import PackedBatch
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.kernels import choose, compile_blocks, installed, kernels
from brim.model.precision import use_fp8
from brim.model.qwen3vl import Qwen3VL
from brim.model.weights import random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.step import TrainStep
from brim.train.synthetic import PUBLISHED, Document, Frame, pack

WORDS = 997
RULES = ((5, 3), (11, 7), (29, 13), (83, 1))


def sequence(rng: np.random.Generator, length: int) -> Document:
    """A picture whose brightness names one of four rules, and a sequence that follows it."""
    rule = int(rng.integers(len(RULES)))
    factor, offset = RULES[rule]
    tokens = [int(rng.integers(WORDS))]
    for _ in range(length - 1):
        tokens.append((tokens[-1] * factor + offset) % WORDS)
    pixels = rng.integers(0, 40, (64, 768)).astype(np.uint8) + np.uint8(60 * rule)
    start, end = (np.array([t]) for t in (PUBLISHED.start, PUBLISHED.end))
    parts = (start, Frame(8, 8, pixels), end, np.array(tokens))
    scored = np.zeros(18 + length, bool)
    scored[19:] = True  # the first token is free
    return Document(parts, scored)


def rows(steps: int, per_row: int, device: torch.device) -> list[PackedBatch]:
    rng = np.random.default_rng(0)
    made = []
    for _ in range(steps):
        documents = [sequence(rng, 46) for _ in range(per_row)]
        made.append(pack(documents, per_row * 64, bucket=64).to(device))
    return made


def shape(dry: bool) -> ModelConfig:
    """The widths of the 4B with 4 layers and 4 tower blocks; 160 M parameters without words."""
    if dry:
        text = TextConfig(
            hidden_size=32, intermediate_size=48, layers=2, heads=2, kv_heads=1, head_dim=16,
            mrope_section=(3, 3, 2),
        )  # fmt: skip
        vision = VisionConfig(
            depth=2, hidden_size=32, intermediate_size=48, heads=2, out_hidden_size=32,
            deepstack=(0,),
        )  # fmt: skip
        return ModelConfig(text=text, vision=vision, tied=True)
    full = ModelConfig.named("4B")
    return replace(
        full,
        text=replace(full.text, layers=4),
        vision=replace(full.vision, depth=4, deepstack=(1, 2)),
    )


def build(name: str, config: ModelConfig, device: torch.device) -> tuple[Qwen3VL, AdamW]:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    dtype = "float32" if name == "float32" else "bfloat16"
    picked = choose(capability, installed(), dtype=dtype)
    # all start from the same float32 weights, rounded where a variant keeps fewer bits
    model = random_model(config, dtype=torch.float32, device=device, kernels=kernels(picked))
    model.to(getattr(torch, dtype))
    if name == "fp8":
        use_fp8(model)
    if picked.compile.value:
        compile_blocks(model)
    whole = name in ("float32", "bfloat16")
    optimizer = AdamW(
        decay_groups(model.named_parameters(), 0.0),
        masters=whole,
        state_dtype=torch.float32 if whole else torch.bfloat16,
    )
    if name == "plain":
        optimizer = PlainRounding(decay_groups(model.named_parameters(), 0.0))
    return model, optimizer


class PlainRounding(AdamW):
    """torch's own AdamW on bfloat16 weights, behind the interface of a step."""

    def __init__(self, groups: list[dict[str, Any]]) -> None:
        super().__init__(groups, masters=False, state_dtype=torch.bfloat16)
        self.inner = torch.optim.AdamW(
            [{"params": g["params"]} for g in groups], lr=1e-5, weight_decay=0.0, foreach=True
        )

    def step(self, closure: Any = None) -> None:
        factor = self.control[0]
        for group in self.param_groups:
            torch._foreach_mul_([p.grad for p in group["params"]], factor)
        for inner, outer in zip(self.inner.param_groups, self.param_groups, strict=True):
            inner["lr"] = outer["lr"]
        self.inner.step()


def rate(step: int, steps: int, warmup: int = 20) -> float:
    """A warm-up, then a cosine to zero."""
    if step < warmup:
        return (step + 1) / warmup
    return (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup))) / 2


def train(name: str, data: list[PackedBatch], args: argparse.Namespace) -> list[float]:
    device = data[0].input_ids.device
    tf32 = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    model, optimizer = build(name, shape(args.dry), device)
    step = TrainStep(model, optimizer)
    losses = [
        step([row], args.learning_rate * rate(n, len(data))).loss for n, row in enumerate(data)
    ]
    found: list[float] = torch.stack(losses).tolist()
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch._dynamo.reset()
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--per-row", type=int, default=64, help="sequences in a row")
    parser.add_argument("--learning-rate", type=float, default=2e-4)
    parser.add_argument("--only", default="float32,bfloat16,rounded,plain,fp8")
    parser.add_argument("--out", default="", help="a file for the curves as JSON")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, eight sequences a row")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = rows(args.steps, 4 if args.dry else args.per_row, device)
    curves: dict[str, list[float]] = {}
    for name in args.only.split(","):
        began = time.monotonic()
        try:
            curves[name] = train(name, data, args)
        except Exception as error:  # one precision's failure must not cost the others
            print(f"{name}: {type(error).__name__}: {error}", flush=True)
            continue
        print(f"{name}: {time.monotonic() - began:.0f} s, last {curves[name][-1]:.4f}", flush=True)
        if args.out:
            Path(args.out).write_text(json.dumps(curves))
    show(curves, args.steps)
    return 0


def show(curves: dict[str, list[float]], steps: int) -> None:
    """Means over tenths of the run, and each precision's distance from the first."""
    tenth = max(1, steps // 10)
    names = list(curves)
    print(("{:>10}" * (len(names) + 1)).format("steps", *names))
    for start in range(0, steps, tenth):
        means = [np.mean(curves[n][start : start + tenth]) for n in names]
        print(("{:>10}" + "{:>10.4f}" * len(names)).format(f"..{start + tenth}", *means))
    if names:
        first = np.array(curves[names[0]][-tenth:])
        for name in names[1:]:
            gap = np.mean(np.array(curves[name][-tenth:]) - first)
            print(f"{name} against {names[0]}, last tenth: {gap:+.4f} nats")


if __name__ == "__main__":
    sys.exit(main())
