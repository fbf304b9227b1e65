"""Training speed of Qwen3-VL on one GPU: variants side by side, counted strictly.

    python benchmarks/train_h200.py                      the variants of the table, 4B then 8B
    python benchmarks/train_h200.py --list               their names and settings
    python benchmarks/train_h200.py --only 4B-fa4 --trace trace.json.gz
    python benchmarks/train_h200.py --dry                tiny shapes, any machine, two minutes

Random weights, synthetic photographs of about one megapixel (1,024 visual and 300 text tokens
each, half of the text scored), rows on the device before the clock starts.  FLOPs are those of
brim.model.flops: tower counted, causal attention half, head on scored rows, no padding, no
recomputation.  Every variant first trains a few steps for compilation, then one step under
torch.cuda.set_sync_debug_mode("error"), then the timed steps; one more is profiled.

The clock is the device's own between two events, over all timed steps.  A table comes last.

Minutes on an H200, compilation (40 to 60 s) included: 1.3 for a 4B, 1.7 for an 8B, 2.2 with FP8.
Variants that differ only in the rows of a step follow each other and share model and compilation:
the second takes 0.3.  A line is printed and written as soon as a variant's time is known, before it
is profiled; --limit ends a variant that hangs, --budget starts none that may not end.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as brim train does

import numpy as np
import torch

from brim.model import flops
from brim.model.batch import PackedBatch, RowCounts
from brim.model.config import ModelConfig, TextConfig, VisionConfig
from brim.model.flops import Trained
from brim.model.kernels import choose, compile_blocks, installed, kernels
from brim.model.layers import Segments, TextMLP, VisionBlock
from brim.model.lora import add_lora
from brim.model.parts import PARTS
from brim.model.precision import use_fp8
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.model.swiglu import swiglu
from brim.model.weights import random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.step import Outcome, TrainStep
from brim.train.synthetic import Document, Tokens, document, pack, photographs

BF16_PEAK = 989e12
DRY_TOKENS = Tokens(508, 509, 510, 511)
"""A small vocabulary's: with the published ids nearly all of a tiny step would be the embedding."""


@dataclass(frozen=True, kw_only=True)
class Variant:
    name: str
    size: str
    attention: str = "fa4"
    vision_attention: str = ""
    compile: bool = True
    states: str = "bf16 rounded"
    """Or "8bit rounded", or "fp32 + masters"."""
    fp8: str = ""
    fp8_scope: str = "text"
    static_patches: bool = False
    length: int = 12_288
    recompute: tuple[int, int] = (0, 0)
    lora: int = 0
    accumulate: int = 1
    """Rows of one optimizer step."""
    budget: float = 0.9
    """Share of activations kept, see brim.model.kernels.ACTIVATION_BUDGET."""
    quack: str = ""
    """untuned or tuned: MLPs of both towers as quack's products with fused activations."""
    swiglu: bool = False
    """FP8 too gets SwiGLU as one kernel; plain layers always do."""

    @property
    def built(self) -> Variant:
        """What the model depends on: equal for variants that can share it."""
        return replace(self, name="", accumulate=1)


FP8 = Variant(name="", size="8B", length=8192, accumulate=2, fp8="tensorwise")
PLAN = [
    # longer rows share out the optimizer; keeping all activations saves their second making
    Variant(name="4B-fa4", size="4B"),
    Variant(name="4B-keep-all", size="4B", budget=1.0),
    Variant(name="4B-keep-all-x4", size="4B", budget=1.0, accumulate=4),
    Variant(name="4B-16k-keep-all", size="4B", length=16_384, budget=1.0),
    Variant(name="4B-20k", size="4B", length=20_480),
    Variant(name="4B-20k-x2", size="4B", length=20_480, accumulate=2),
    Variant(name="8B-fa4", size="8B", length=8192, accumulate=2),
    Variant(name="8B-fa4-x4", size="8B", length=8192, accumulate=4),
    Variant(name="8B-tower-varlen", size="8B", length=8192, accumulate=2,
            vision_attention="varlen"),
    Variant(name="8B-8bit-12k", size="8B", length=12_288, states="8bit rounded"),
    Variant(name="8B-8bit-keep-all", size="8B", length=8192, states="8bit rounded", budget=1.0),
    replace(FP8, name="8B-fp8-tensorwise"),
    replace(FP8, name="8B-fp8-swiglu", swiglu=True),
    replace(FP8, name="8B-fp8-both", fp8_scope="both", swiglu=True),
    replace(FP8, name="8B-fp8-both-8bit-12k", fp8_scope="both", swiglu=True, length=12_288,
            accumulate=1, states="8bit rounded"),
    replace(FP8, name="8B-fp8-rowwise", fp8="rowwise"),
    replace(FP8, name="8B-fp8-rowwise-gw", fp8="rowwise_with_gw_hp"),
    Variant(name="4B-lora", size="4B", lora=16, length=16_384),
    Variant(name="8B-lora", size="8B", lora=16, length=16_384),
    Variant(name="4B-fa4-16k", size="4B", length=16_384),
    Variant(name="4B-fa4-16k-x4", size="4B", length=16_384, accumulate=4),
    Variant(name="4B-varlen", size="4B", attention="varlen"),
    Variant(name="4B-mixed-attention", size="4B", attention="varlen", vision_attention="fa4"),
    Variant(name="4B-fa4-eager", size="4B", length=8192, compile=False),
    Variant(name="4B-fa4-masters", size="4B", length=8192, states="fp32 + masters"),
    Variant(name="4B-fa4-static", size="4B", static_patches=True),
    Variant(name="4B-quack", size="4B", quack="untuned"),
    Variant(name="4B-quack-tuned", size="4B", quack="tuned"),
]  # fmt: skip
STATES = {"bf16": torch.bfloat16, "8bit": torch.uint8, "fp32": torch.float32}
KINDS = (
    # first match wins; names as CUDA and Inductor print them
    ("attention", ("flash", "fmha", "attention", "_fwd_kernel", "FlashAttention", "bwd_postprocess",
                   "bwd_preprocess", "sdpa")),
    ("gemm", ("gemm", "Gemm", "nvjet", "cutlass", "cublas", "xmma", "_scaled_mm")),
    ("optimizer", ("_adamw", "multi_tensor", "lpnorm", "LpNorm")),
    ("compiled", ("triton_",)),
    ("copy and fill", ("Memcpy", "Memset", "copy", "fill", "CatArray")),
    ("rows", ("index", "gather", "scatter", "embedding", "sort", "Radix")),
)  # fmt: skip


class SwigluMLP(torch.nn.Module):
    """A text block's MLP whose activations are one kernel even where ``down`` is no plain layer."""

    def __init__(self, mlp: TextMLP) -> None:
        super().__init__()
        self.gate_up, self.down = mlp.gate_up, mlp.down

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(swiglu(self.gate_up(x)))


class QuackMLP(torch.nn.Module):
    """A text block's MLP: gate_up with SwiGLU in its epilogue, and in the backward pass too."""

    def __init__(self, mlp: TextMLP, tuned: bool) -> None:
        super().__init__()
        self.gate_up, self.down, self.tuned = mlp.gate_up, mlp.down, tuned

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        from quack.mlp import mlp_func

        return mlp_func(
            x, self.gate_up.weight, self.down.weight, "swiglu", tuned=self.tuned, concat_layout=True
        )


class QuackVisionBlock(VisionBlock):
    """A tower block whose GELU is in the epilogue of its product."""

    tuned = False

    def forward(self, x: torch.Tensor, at: Segments) -> torch.Tensor:
        from quack.mlp import mlp_func

        x = x + self.attention(self.attention_norm(x), at)
        return x + mlp_func(
            self.mlp_norm(x),
            self.up.weight,
            self.down.weight,
            "gelu_tanh_approx",
            bias1=self.up.bias,
            bias2=self.down.bias,
            tuned=self.tuned,
        )


def use_quack(model: Qwen3VL, tuned: bool) -> None:
    for block in model.blocks:
        block.mlp = QuackMLP(block.mlp, tuned)
    for block in model.visual.blocks:
        block.__class__ = QuackVisionBlock
        block.tuned = tuned


def build(variant: Variant, config: ModelConfig, device: torch.device) -> tuple[Qwen3VL, AdamW]:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    picked = choose(
        capability,
        installed(),
        attention=variant.attention if capability else None,
        compile=variant.compile if capability else False,
    )
    chosen = kernels(picked)
    if variant.vision_attention and capability:
        other = choose(capability, installed(), attention=variant.vision_attention)
        chosen = replace(chosen, vision_attention=kernels(other).vision_attention)
    dtype = torch.bfloat16 if capability else torch.float32
    model = random_model(config, dtype=dtype, device=device, kernels=chosen)
    model.recompute = Recompute(
        text_blocks=variant.recompute[0], vision_blocks=variant.recompute[1]
    )
    if variant.lora:
        add_lora(model, variant.lora, 2.0 * variant.lora)
    if variant.quack:
        use_quack(model, variant.quack == "tuned")
    if variant.fp8:
        use_fp8(model, variant.fp8, variant.fp8_scope)
    if variant.swiglu:
        for block in model.blocks:
            block.mlp = SwigluMLP(block.mlp)
    if picked.compile.value:
        compile_blocks(
            model, static_patches=variant.static_patches, activation_budget=variant.budget
        )
    masters = variant.states.startswith("fp32")
    optimizer = AdamW(
        decay_groups(model.named_parameters(), 0.1),
        lr=1e-5,
        masters=masters,
        state_dtype=STATES[variant.states.split()[0]],
    )
    return model, optimizer


@dataclass(frozen=True)
class Bench:
    """A model that is compiled, and its rows on the device."""

    of: Variant
    """The variant without what can change, see :attr:`Variant.built`."""
    config: ModelConfig
    length: int
    step: TrainStep
    rows: list[PackedBatch]


def prepare(variant: Variant, args: argparse.Namespace, device: torch.device) -> Bench:
    config = tiny() if args.dry else ModelConfig.named(variant.size)
    length = args.length or (512 if args.dry else variant.length)
    model, optimizer = build(variant, config, device)
    source = photographs(config, length, bucket=args.bucket, text=30 if args.dry else 300)
    if args.dry:
        source = small_rows(config, length)
    rows = [row.to(device) for row in itertools.islice(source, args.rows)]
    return Bench(variant.built, config, length, TrainStep(model, optimizer, max_norm=1.0), rows)


def measure(
    variant: Variant, bench: Bench, args: argparse.Namespace, device: torch.device
) -> dict[str, Any]:
    began = time.monotonic()
    config, step, cuda = bench.config, bench.step, device.type == "cuda"
    if cuda:
        torch.cuda.reset_peak_memory_stats()
    batches = grouped(bench.rows, variant.accumulate)
    losses = [step(batch, 1e-5).loss for batch in batches]
    synchronize(device)
    ready = time.monotonic() - began
    syncs = sync_free(step, batches[0]) if cuda else "not a GPU"
    steps = max(3, args.steps // variant.accumulate)
    seconds, counted, outcome = timed(step, batches, steps, device)
    frozen = dict.fromkeys(PARTS, False)
    trained = Trained(**frozen, lora_rank=variant.lora) if variant.lora else Trained()
    total = sum(flops.step(config, c, trained).total for c in counted)
    tokens, images = sum(c.tokens for c in counted), sum(c.images for c in counted)
    return {
        **asdict(variant),
        "length": bench.length,
        "seconds_per_step": seconds / steps,
        "tflops": total / seconds / 1e12,
        "mfu": total / seconds / BF16_PEAK,
        "tokens_per_s": tokens / seconds,
        "images_per_s": images / seconds,
        "fill": tokens / (bench.length * len(counted)),
        "peak_gib": torch.cuda.max_memory_allocated() / 2**30 if cuda else None,
        "reserved_gib": torch.cuda.max_memory_reserved() / 2**30 if cuda else None,
        "ready_s": ready,
        "syncs": syncs,
        "loss": [losses[0].item(), outcome.loss.item()],
        "norm": outcome.norm.item(),
        "parts": asdict(flops.step(config, bench.rows[0].counts, trained)),
    }


def grouped(rows: list[PackedBatch], size: int) -> list[list[PackedBatch]]:
    """Batches of ``size`` rows; the rows are used in turn."""
    endless = itertools.cycle(rows)
    return [[next(endless) for _ in range(size)] for _ in rows]


def timed(
    step: TrainStep, batches: list[list[PackedBatch]], n: int, device: torch.device
) -> tuple[float, list[RowCounts], Outcome]:
    """Seconds of ``n`` steps by the device's clock, and the counts of their rows."""
    counted = [row.counts for i in range(n) for row in batches[i % len(batches)]]
    start = time.perf_counter()
    if device.type == "cuda":
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
    for i in range(n):
        outcome = step(batches[i % len(batches)], 1e-5)
    if device.type == "cuda":
        last.record()
        last.synchronize()
        return first.elapsed_time(last) / 1e3, counted, outcome
    return time.perf_counter() - start, counted, outcome


def sync_free(step: TrainStep, batch: list[PackedBatch]) -> str:
    """One step in which any wait of the host for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        step(batch, 1e-5)
    except RuntimeError as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"{where.filename}:{where.lineno}: {str(error).splitlines()[0]}"
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return "none"


def profile(
    step: TrainStep, batch: list[PackedBatch], device: torch.device, trace: str
) -> dict[str, Any]:
    """Device time of one step by kind and by kernel, milliseconds."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    cuda = device.type == "cuda"
    activities = [ProfilerActivity.CUDA] if cuda else [ProfilerActivity.CPU]
    synchronize(device)
    with record(activities=activities) as seen:
        step(batch, 1e-5)
        synchronize(device)
    if trace:
        seen.export_chrome_trace(trace)
    kinds: dict[str, float] = defaultdict(float)
    table = []
    for event in seen.key_averages():
        ms = (event.self_device_time_total if cuda else event.self_cpu_time_total) / 1e3
        if ms > 0:
            kinds[kind(event.key)] += ms
            table.append((ms, event.count, event.key))
    table.sort(reverse=True)
    busy = sum(kinds.values())
    return {
        "busy_ms": busy,
        "kinds_ms": dict(kinds),
        "top": table[:28],
        "launches": sum(t[1] for t in table),
    }


def kind(name: str) -> str:
    return next((k for k, parts in KINDS if any(p in name for p in parts)), "other")


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def tiny() -> ModelConfig:
    text = TextConfig(
        vocab_size=512, hidden_size=64, intermediate_size=96, layers=3, heads=4, kv_heads=2,
        head_dim=16, mrope_section=(3, 3, 2),
    )  # fmt: skip
    vision = VisionConfig(
        depth=3, hidden_size=32, intermediate_size=48, heads=2, out_hidden_size=64,
        deepstack=(0, 2), positions=36,
    )  # fmt: skip
    return ModelConfig(text=text, vision=vision, tied=True)


def small_rows(config: ModelConfig, length: int) -> Any:
    for seed in itertools.count():
        documents = small_documents(config, seed)
        yield pack(documents, length, bucket=4, side=config.vision.grid_side)


def small_documents(config: ModelConfig, seed: int) -> list[Document]:
    rng = np.random.default_rng(seed)
    words = config.text.vocab_size
    grids = [(4, 6), (8, 8), (6, 4), (4, 4)]
    return [
        document(rng, [g], text=20, answer=20, vocabulary=words, tokens=DRY_TOKENS) for g in grids
    ]


def show_kernels(result: dict[str, Any]) -> None:
    seen = result["kernels"]
    busy = seen["busy_ms"]
    print(f"  one step of {result['name']}: {busy:.1f} ms busy in {seen['launches']} launches")
    for name, ms in sorted(seen["kinds_ms"].items(), key=lambda item: -item[1]):
        print(f"    {name:14} {ms:8.1f} ms {ms / busy:6.1%}")
    for ms, count, name in seen["top"]:
        print(f"      {ms:8.2f} ms {count:5}x  {name[:110]}")


def show_table(results: list[dict[str, Any]]) -> None:
    head = (
        "variant",
        "row",
        "s/step",
        "images/s",
        "tokens/s",
        "TFLOP/s",
        "MFU",
        "peak GiB",
        "syncs",
    )
    print(("{:22}" + "{:>10}" * 8).format(*head))
    for r in results:
        if "error" in r:
            print(f"{r['name']:22}  {r['error'][:90]}")
            continue
        peak = "n/a" if r["peak_gib"] is None else f"{r['peak_gib']:.1f}"
        cells = (
            f"{r['accumulate']}x{r['length']}", f"{r['seconds_per_step']:.3f}",
            f"{r['images_per_s']:.2f}",
            f"{r['tokens_per_s']:.0f}", f"{r['tflops']:.1f}", f"{r['mfu']:.1%}", peak,
            r["syncs"] if len(r["syncs"]) < 10 else "YES",
        )  # fmt: skip
        print(("{:22}" + "{:>10}" * 8).format(r["name"], *cells))


def gpu_line() -> str:
    query = "--query-gpu=name,clocks.sm,power.draw,temperature.gpu,clocks_event_reasons.active"
    try:
        done = subprocess.run(
            ["nvidia-smi", query, "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "no nvidia-smi"
    return done.stdout.strip()


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="names of variants, comma-separated")
    parser.add_argument("--length", type=int, default=0, help="tokens of a row; 0: the variant's")
    parser.add_argument("--rows", type=int, default=3, help="different rows, used in turn")
    parser.add_argument("--steps", type=int, default=9)
    parser.add_argument("--bucket", type=int, default=128, help="multiple of the vision rows")
    parser.add_argument("--budget", type=float, default=500, help="start no variant after, seconds")
    parser.add_argument("--limit", type=int, default=200, help="seconds of one variant")
    parser.add_argument("--out", default="", help="a file for the results as JSON lines")
    parser.add_argument("--trace", default="", help="a file for the profiled step's trace")
    parser.add_argument("--no-profile", action="store_true")
    parser.add_argument("--dry", action="store_true", help="tiny shapes")
    parser.add_argument("--list", action="store_true", help="print the variants and end")
    return parser.parse_args()


def too_long(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError("over its --limit")


def run(
    variant: Variant, bench: Bench | None, args: argparse.Namespace, device: torch.device
) -> tuple[Bench, dict[str, Any]]:
    """Measure and tell; ``bench`` is that of the variant before, if it serves."""
    signal.alarm(args.limit)
    if bench is None:
        bench = prepare(variant, args, device)
    result = measure(variant, bench, args, device)
    told = {k: v for k, v in result.items() if k != "parts"}
    print(json.dumps(told), flush=True)
    write(args.out, result)
    if not args.no_profile:
        batch = grouped(bench.rows, variant.accumulate)[0]
        seen = {"name": variant.name, "kernels": profile(bench.step, batch, device, args.trace)}
        show_kernels(seen)
        write(args.out, seen)
    return bench, result


def write(path: str, line: dict[str, Any]) -> None:
    if path:
        with Path(path).open("a") as f:
            f.write(json.dumps(line) + "\n")


def empty(device: torch.device) -> None:
    torch._dynamo.reset()
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()


def main() -> int:
    args = arguments()
    began = time.monotonic()
    chosen = [v for v in PLAN if not args.only or v.name in args.only.split(",")]
    if args.list:
        print(*chosen, sep="\n")
        return 0
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_tf32 = True
    signal.signal(signal.SIGALRM, too_long)
    print(f"torch {torch.__version__}, packages {sorted(installed())}, {gpu_line()}", flush=True)
    results: list[dict[str, Any]] = []
    bench: Bench | None = None
    for variant in chosen:
        if time.monotonic() - began > args.budget:
            results.append({"name": variant.name, "error": "not run: out of time"})
            continue
        if bench is not None and bench.of != variant.built:
            bench = None
            empty(device)
        try:
            bench, result = run(variant, bench, args, device)
        except Exception as error:  # one variant's failure must not cost the others
            traceback.print_exc()
            bench, result = (
                None,
                {"name": variant.name, "error": f"{type(error).__name__}: {error}"},
            )
            write(args.out, result)
        signal.alarm(0)
        if bench is None:
            empty(device)
        results.append(result)
        print(f"  {time.monotonic() - began:.0f} s so far; {gpu_line()}", flush=True)
    show_table(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
