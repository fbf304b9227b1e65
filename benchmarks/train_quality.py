"""Do cheaper numbers train as well, and does brim train like transformers?  Loss curves compared.

    python benchmarks/train_quality.py --budget 300   300 steps, one H200: about half a minute an
                                                      arm, compilation included
    python benchmarks/train_quality.py --dry          the same on tiny shapes, any machine

The model has the widths of the 4B and few layers; weights, data and order are the same for all.
Texts are sequences that a model can learn (each token is an affine function of the one before,
with parameters that the picture's brightness names), so the loss falls far.

masters       bfloat16 weights, float32 masters and moments: the reference
reordered     the same with the documents of each row in reverse: the same mathematics, rounded
              in another order, so the distance that any two correct programs have
transformers  the published implementation on padded batches (SDPA), same optimizer as masters
rounded       bfloat16 weights and moments, stochastic rounding, no masters
8bit          bfloat16 weights, 8-bit moments, both rounded stochastically
fp8           as rounded, linear layers of the text blocks in FP8 (tensorwise)
plain         bfloat16 weights and moments, rounded to nearest: what the rounding prevents
float32       weights, products (no TF32) and moments in float32

Printed: the mean loss of each tenth of the run, and of each arm the distance from the reference:
at the end (mean of the last tenth), at its widest (of the means over tenths), and step by step
(root mean square), the last also in units of what reordering alone does.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from brim.errors import MissingExtra
from brim.model.batch import PackedBatch, RowCounts
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.kernels import choose, compile_blocks, installed, kernels
from brim.model.precision import use_fp8
from brim.model.weights import published, random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.step import TrainStep
from brim.train.synthetic import PUBLISHED, Document, Frame, Tokens, pack, padded

WORDS = 997
RULES = ((5, 3), (11, 7), (29, 13), (83, 1))
LENGTH, PATCHES = 64, 64
"""Tokens and patches of a document: 18 tokens of picture, 46 of text."""
REFERENCE, NOISE = "masters", "reordered"
ARMS = (REFERENCE, NOISE, "transformers", "rounded", "8bit", "fp8", "plain", "float32")


@dataclass(frozen=True)
class Row:
    """One step's documents, packed for brim; the padded form is made when it is asked for."""

    documents: list[Document]
    packed: PackedBatch

    @property
    def counts(self) -> RowCounts:
        return self.packed.counts


class Published(nn.Module):
    """transformers' model behind the call of brim's: ``scale`` times the summed cross-entropy."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, row: Row, scale: float) -> torch.Tensor:
        device = row.packed.input_ids.device
        batch = {name: tensor.to(device) for name, tensor in padded(row.documents).items()}
        loss: torch.Tensor = self.inner(**batch, use_cache=False).loss
        return loss * (row.counts.scored * scale)


class Packed(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, row: Row, scale: float) -> torch.Tensor:
        loss: torch.Tensor = self.inner(row.packed, scale)
        return loss


def sequence(rng: np.random.Generator, tokens: Tokens) -> Document:
    """A picture whose brightness names one of four rules, and a sequence that follows it."""
    rule = int(rng.integers(len(RULES)))
    factor, offset = RULES[rule]
    words = [int(rng.integers(WORDS))]
    for _ in range(LENGTH - 19):
        words.append((words[-1] * factor + offset) % WORDS)
    pixels = rng.integers(0, 40, (PATCHES, 768)).astype(np.uint8) + np.uint8(60 * rule)
    start, end = (np.array([t]) for t in (tokens.start, tokens.end))
    scored = np.zeros(LENGTH, bool)
    scored[19:] = True  # the first word is free
    return Document((start, Frame(8, 8, pixels), end, np.array(words)), scored, tokens)


def rows(steps: int, per_row: int, tokens: Tokens, device: torch.device) -> list[Row]:
    rng = np.random.default_rng(0)
    made = [[sequence(rng, tokens) for _ in range(per_row)] for _ in range(steps)]
    return [packed(documents, device) for documents in made]


def packed(documents: list[Document], device: torch.device) -> Row:
    batch = pack(documents, len(documents) * LENGTH, bucket=PATCHES)
    return Row(documents, batch.to(device))


def shape(dry: bool) -> tuple[ModelConfig, Tokens]:
    """The widths of the 4B with 4 layers and 4 tower blocks: 560 M parameters and the words'."""
    if dry:
        text = TextConfig(
            vocab_size=1024, hidden_size=64, intermediate_size=128, layers=2, heads=4, kv_heads=2,
            head_dim=16, mrope_section=(3, 3, 2),
        )  # fmt: skip
        vision = VisionConfig(
            depth=2, hidden_size=32, intermediate_size=48, heads=2, out_hidden_size=64,
            deepstack=(0,),
        )  # fmt: skip
        return ModelConfig(text=text, vision=vision, tied=True), Tokens(1000, 1001, 1002, 1003)
    full = ModelConfig.named("4B")
    small = replace(
        full,
        text=replace(full.text, layers=4),
        vision=replace(full.vision, depth=4, deepstack=(1, 2)),
    )
    return small, PUBLISHED


def build(arm: str, args: argparse.Namespace, device: torch.device) -> TrainStep:
    """All start from the same float32 weights, rounded where an arm keeps fewer bits."""
    config, tokens = shape(args.dry)
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    dtype = "float32" if arm == "float32" or args.float32 else "bfloat16"
    picked = choose(capability, installed(), dtype=dtype)
    ours = random_model(config, dtype=torch.float32, device=device, kernels=kernels(picked))
    if arm == "transformers":
        model: nn.Module = Published(theirs(ours, config, tokens))
        for parameter in model.parameters():  # not the rotary frequencies
            parameter.data = parameter.data.to(getattr(torch, dtype))
    else:
        ours.to(getattr(torch, dtype))
        if arm == "fp8":
            use_fp8(ours)
        if picked.compile.value:
            compile_blocks(ours)
        model = Packed(ours)
    return TrainStep(model, optimizer(arm, model))  # type: ignore[arg-type]


def optimizer(arm: str, model: nn.Module) -> AdamW:
    groups = decay_groups(model.named_parameters(), 0.0)
    if arm == "plain":
        return PlainRounding(groups)
    states = {"rounded": torch.bfloat16, "fp8": torch.bfloat16, "8bit": torch.uint8}
    state_dtype = states.get(arm, torch.float32)
    return AdamW(groups, masters=arm not in states, state_dtype=state_dtype)


def theirs(ours: Any, config: ModelConfig, tokens: Tokens) -> nn.Module:
    """transformers' model with the weights of ours, float32."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    ids = {
        "image_token_id": tokens.image_pad,
        "video_token_id": tokens.video_pad,
        "vision_start_token_id": tokens.start,
        "vision_end_token_id": tokens.end,
    }
    theirs = Qwen3VLConfig(**{**config.to_hf(), **ids})
    theirs._attn_implementation = "sdpa"
    with torch.device(ours.embedding.weight.device):
        model = Qwen3VLForConditionalGeneration(theirs)
    missing = model.load_state_dict(dict(published(ours)), strict=False)
    assert not missing.unexpected_keys
    assert missing.missing_keys == ["lm_head.weight"] * config.tied
    return model.train()  # type: ignore[no-any-return]


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


def train(arm: str, data: list[Row], args: argparse.Namespace) -> list[float]:
    device = data[0].packed.input_ids.device
    step = build(arm, args, device)
    losses = []
    for n, row in enumerate(data):
        if arm == NOISE:
            row = packed(row.documents[::-1], device)
        losses.append(step([row], args.learning_rate * rate(n, len(data))).loss)  # type: ignore[list-item]
    found: list[float] = torch.stack(losses).tolist()
    return found


def distances(
    curves: dict[str, list[float]], reference: str = REFERENCE
) -> dict[str, dict[str, float]]:
    """Arm → ``end``, ``widest``, ``rms`` of its loss minus the reference's, nats; and ``noises``,
    the rms in units of the reordered arm's."""
    if reference not in curves:
        return {}
    tenth = max(1, len(curves[reference]) // 10)
    found = {}
    for arm, curve in curves.items():
        if arm == reference:
            continue
        gaps = np.array(curve) - np.array(curves[reference])
        means = [float(gaps[i : i + tenth].mean()) for i in range(0, len(gaps), tenth)]
        found[arm] = {
            "end": means[-1],
            "widest": max(means, key=abs),
            "rms": float(np.sqrt(np.mean(gaps**2))),
        }
    floor = found.get(NOISE, {}).get("rms")
    for values in found.values():
        if floor:
            values["noises"] = values["rms"] / floor
    return found


def show(curves: dict[str, list[float]]) -> None:
    names = list(curves)
    steps = len(curves[names[0]])
    tenth = max(1, steps // 10)
    print(("{:>6}" + "{:>14}" * len(names)).format("steps", *names))
    for start in range(0, steps, tenth):
        means = [np.mean(curves[n][start : start + tenth]) for n in names]
        print(("{:>6}" + "{:>14.4f}" * len(names)).format(f"..{start + tenth}", *means))
    print(f"\nnats from {REFERENCE}     at the end      widest         rms   rms / {NOISE}")
    for arm, gap in distances(curves).items():
        noises = f"{gap['noises']:14.1f}" if "noises" in gap else ""
        print(f"{arm:22}{gap['end']:+12.4f}{gap['widest']:+12.4f}{gap['rms']:12.4f}{noises}")


def run(args: argparse.Namespace, say: Callable[[str], None]) -> dict[str, list[float]]:
    """The curve of each arm that could run in the time."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = False
    began = time.monotonic()
    data = rows(args.steps, args.per_row, shape(args.dry)[1], device)
    curves: dict[str, list[float]] = {}
    for arm in args.only.split(","):
        if time.monotonic() - began > args.budget:
            say(f"{arm}: left out, {args.budget:.0f} s are over")
            continue
        start = time.monotonic()
        try:
            curves[arm] = train(arm, data, args)
        except Exception as error:  # one arm's failure must not cost the others
            if not isinstance(error, MissingExtra):
                traceback.print_exc()
            say(f"{arm}: left out, {error}")
            continue
        gap = distances(curves).get(arm, {}).get("rms", 0.0)
        say(
            f"{arm}: {time.monotonic() - start:.0f} s, last {curves[arm][-1]:.4f}, "
            f"{gap:.4f} nats rms from {REFERENCE}"
        )
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()
        if args.out:
            figures = {"curves": curves, "distances": distances(curves)}
            Path(args.out).write_text(json.dumps(figures))
    return curves


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--per-row", type=int, default=0, help="documents in a row: 16; --dry: 6")
    parser.add_argument("--learning-rate", type=float, default=0.0, help="2e-4; --dry: 3e-3")
    parser.add_argument("--only", default=",".join(ARMS))
    parser.add_argument("--budget", type=float, default=150, help="seconds; no arm starts later")
    parser.add_argument("--float32", action="store_true", help="all arms' weights in float32")
    parser.add_argument("--out", default="", help="a file for the curves as JSON")
    parser.add_argument("--dry", action="store_true", help="tiny shapes")
    args = parser.parse_args(words)
    args.learning_rate = args.learning_rate or (3e-3 if args.dry else 2e-4)
    args.per_row = args.per_row or (6 if args.dry else 16)
    return args


def main() -> int:
    args = arguments()
    curves = run(args, lambda line: print(line, flush=True))
    if curves:
        show(curves)
    return 0


if __name__ == "__main__":
    sys.exit(main())
