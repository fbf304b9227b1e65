"""``brim train`` with photographs from disk in the loop: speed, input wait, GPU utilisation.

    python benchmarks/train_disk.py --tokenizer FOLDER                 4B, 40 steps, one GPU
    python benchmarks/train_disk.py --tokenizer FOLDER --dry           tiny model, any machine

Makes JPEG files of about one megapixel and chats about them, then runs the command as a user would,
in a process of its own, and reads what it recorded.  Weights are random; the tokenizer is real.
The first steps (compilation) and the profiled ones are left out.  On an H200: 20 s for the files on
16 cores, 80 s to the first step, 0.8 s a step.  A run that takes longer than --budget is ended with
SIGKILL, and what it recorded until then is reported.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

WARMUP = 16  # steps left out: compilation, then the profiler window
SIZES = ((1024, 1024), (768, 1024), (1024, 768), (960, 1280), (1152, 896), (1024, 1536))


def photograph(task: tuple[str, int]) -> int:
    """Write one JPEG with the statistics of a photograph: smooth shapes, a little grain."""
    from PIL import Image

    path, seed = task
    rng = np.random.default_rng(seed)
    height, width = SIZES[seed % len(SIZES)]
    total = np.zeros((height, width, 3), np.float32)
    for cells, weight in ((4, 90), (16, 45), (64, 25), (256, 12)):
        small = rng.uniform(-1, 1, (cells, cells, 3)).astype(np.float32)
        layers = [
            Image.fromarray(small[..., c]).resize((width, height), Image.Resampling.BICUBIC)
            for c in range(3)
        ]
        total += weight * np.stack([np.asarray(layer) for layer in layers], axis=-1)
    total += 128 + rng.normal(0, 3, total.shape)
    Image.fromarray(total.clip(0, 255).astype(np.uint8)).save(path, quality=88)
    return Path(path).stat().st_size


def make_data(folder: Path, images: int, chats: int) -> Path:
    folder.mkdir(parents=True)
    tasks = [(str(folder / f"{n}.jpg"), n) for n in range(images)]
    with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        total = sum(pool.map(photograph, tasks, chunksize=8))
    print(f"{images} photographs, {total / images / 1e3:.0f} kB each", flush=True)
    rng = np.random.default_rng(0)
    words = ["the", "a", "red", "blue", "house", "tree", "street", "table", "left", "above"]
    lines = []
    for n in range(chats):
        question, answer = (" ".join(rng.choice(words, 140).tolist()) for _ in range(2))
        turns = [
            {"role": "user", "content": f"<image>{question}?"},
            {"role": "assistant", "content": f"{answer}."},
        ]
        lines.append(json.dumps({"messages": turns, "images": [f"{n % images}.jpg"]}) + "\n")
    path = folder / "chats.jsonl"
    path.write_text("".join(lines))
    return path


def configuration(args: argparse.Namespace, folder: Path, data: Path) -> Path:
    text = f"""output_dir = "{folder / "out"}"
[model]
random = "{args.model or args.size}"
processor = "{args.tokenizer}"
fp8 = "{args.fp8}"
[optimizer]
states = "bfloat16"
[train]
max_steps = {args.steps}
num_train_epochs = 1000
save_steps = 0
save_at_end = false
[data]
sources = ["{data}"]
tokens_per_row = {args.tokens_per_row}
rows_per_step = {args.rows_per_step}
patch_bucket = 128
"""
    path = folder / "disk.toml"
    path.write_text(text)
    return path


class Utilisation:
    """nvidia-smi's GPU-Util, twice a second, while entered."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Utilisation:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        except Exception:  # no driver, no samples
            return
        while not self._stop.wait(0.5):
            rates = pynvml.nvmlDeviceGetUtilizationRates(handle)
            self.samples.append((time.monotonic(), float(rates.gpu)))


def report(folder: Path, samples: list[tuple[float, float]], args: argparse.Namespace) -> None:
    (records,) = (folder / "out" / "records").iterdir()
    lines = [json.loads(line) for line in (records / "metrics.jsonl").read_text().splitlines()]
    steps = [
        json.loads(line)
        for line in (records / "steps.rank0.jsonl").read_text().splitlines()
        if '"kind"' not in line
    ]
    steady = [s for s in steps if s.get("n", 0) >= WARMUP and not s.get("profiled")]
    if not steady:
        print(f"only {len(steps)} steps: nothing after the warm-up")
        return
    wall = sum(s["wall"] for s in steady)
    tflops = [line["tflops"] for line in lines if line["step"] > WARMUP] or [float("nan")]
    ends = [s["t"] for s in steady]
    util = [u for t, u in samples if ends[0] <= t <= ends[-1]]
    result: dict[str, Any] = {
        "size": args.size,
        "fp8": args.fp8,
        "steps": len(steady),
        "seconds_per_step": wall / len(steady),
        "images_per_s": sum(s["images"] for s in steady) / wall,
        "tokens_per_s": sum(s["tokens"] - s.get("pad_tokens", 0) for s in steady) / wall,
        "input_wait": sum(s.get("input_wait", 0) for s in steady) / wall,
        "padding": sum(s.get("pad_tokens", 0) for s in steady) / sum(s["tokens"] for s in steady),
        "tflops": sum(tflops) / len(tflops),
        "mfu": sum(tflops) / len(tflops) / 989,
        "gpu_util": sum(util) / len(util) if util else None,
        "peak_gib": lines[-1].get("peak_memory_bytes", 0) / 2**30 or None,
    }
    print(json.dumps(result), flush=True)
    if args.out:
        with args.out.open("a") as f:
            f.write(json.dumps(result) + "\n")
    for name, value in result.items():
        print(f"{name:18} {value:.4g}" if isinstance(value, float) else f"{name:18} {value}")


def run(command: list[str], budget: float) -> int:
    """The exit code, 0 for a run that was ended after ``budget`` seconds."""
    job = subprocess.Popen(command, start_new_session=True)
    try:
        return job.wait(budget)
    except subprocess.TimeoutExpired:
        print(f"ended after {budget:.0f} s", flush=True)
        os.killpg(job.pid, signal.SIGKILL)
        job.wait()
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokenizer", required=True, help="folder or hub id of a Qwen3-VL")
    parser.add_argument("--size", default="4B")
    parser.add_argument("--model", default="", help="a folder with config.json, instead of a size")
    parser.add_argument("--fp8", default="")
    parser.add_argument("--tokens-per-row", type=int, default=12_288)
    parser.add_argument("--rows-per-step", type=int, default=1)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--budget", type=float, default=300, help="seconds of the run")
    parser.add_argument("--out", type=Path, help="a file for the result as a line of JSON")
    parser.add_argument("--dry", action="store_true", help="few images, few steps")
    args = parser.parse_args()
    if args.dry:
        args.images, args.steps = 8, WARMUP + 4
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = make_data(folder / "photos", args.images, 4 * args.images)
        path = configuration(args, folder, data)
        command = [sys.executable, "-m", "brim", "train", str(path)]
        with Utilisation() as seen:
            code = run(command, args.budget)
        if code:
            return code
        report(folder, seen.samples, args)
    return 0


if __name__ == "__main__":
    sys.exit(main())
