"""What watching costs: the same job with and without ``brim diagnose``, in pairs.

    python benchmarks/overhead.py [--pairs N] [--steps N] [--out FILE]      20 ms steps on the CPU
    python benchmarks/overhead.py --device cuda                             100 ms steps on a GPU

The job measures its own steps with its own clock and prints their median; brim's figures are not
used.  The two arms of a pair follow each other, and their order changes from pair to pair, so that
a machine that grows slower while this runs favours neither.  Steps in the profiler window (CUDA)
are a handful, which a median does not see.  Beside the wall time stands the CPU time of the whole
job process per step (training thread, hooks, sampler): it hardly moves when others use the machine.
Exit code 1: the median overhead is above the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEP_S = {"cpu": 0.020, "cuda": 0.100}
WARMUP = 30
"""Steps that the job leaves out of its median."""
LIMIT = 0.01


def main() -> int:
    args = _arguments()
    if args.job:
        return _job(args)
    work = args.work or _calibrate(args)
    print(f"{args.device}: {args.steps} steps of {work} products each, {args.pairs} pairs")
    print(f"{'pair':>4} {'alone':>10} {'watched':>10} {'overhead':>9} {'of the CPU':>10}")
    rows = []
    with tempfile.TemporaryDirectory() as runs:
        for pair in range(args.pairs):
            rows.append(_pair(args, work, Path(runs), watched_first=bool(pair % 2)))
            _print_row(pair, rows[-1])
    summary = _summary(rows)
    print(
        f"overhead: {summary['median']:.2%} of the step (median of {args.pairs} pairs, "
        f"{summary['low']:.2%} to {summary['high']:.2%}; the same arm differs by "
        f"{summary['noise']:.2%} from pair to pair), {summary['cpu']:.2%} of the job's CPU time"
    )
    if args.out:
        result = {"device": args.device, "work": work, **summary, "pairs": rows}
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    return int(summary["median"] > LIMIT)


def _print_row(pair: int, row: dict[str, float]) -> None:
    alone, watched = row["alone_s"], row["watched_s"]
    print(
        f"{pair:>4} {alone * 1e3:>7.2f} ms {watched * 1e3:>7.2f} ms {watched / alone - 1:>8.2%}"
        f" {row['watched_cpu_s'] / row['alone_cpu_s'] - 1:>10.2%}",
        flush=True,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=tuple(STEP_S), default="cpu")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, help="steps of each run (250; cuda: 120)")
    parser.add_argument("--work", type=int, help="matrix products a step (found by itself)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--job", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.steps = args.steps or {"cpu": 250, "cuda": 120}[args.device]
    return args


def _summary(rows: list[dict[str, float]]) -> dict[str, float]:
    """Overheads as shares of the step alone; ``noise`` is the relative spread of the same arm."""
    overheads = [row["watched_s"] / row["alone_s"] - 1 for row in rows]
    alone = [row["alone_s"] for row in rows]
    return {
        "median": statistics.median(overheads),
        "low": min(overheads),
        "high": max(overheads),
        "cpu": statistics.median(row["watched_cpu_s"] / row["alone_cpu_s"] - 1 for row in rows),
        "noise": (max(alone) - min(alone)) / statistics.median(alone),
    }


def _pair(
    args: argparse.Namespace, work: int, runs: Path, *, watched_first: bool
) -> dict[str, float]:
    found: dict[str, float] = {}
    for name in ("watched", "alone") if watched_first else ("alone", "watched"):
        watch = ["-m", "brim", "diagnose", "--runs", str(runs), "--steps", "1000000", "--"]
        seen = _run(args, work, [sys.executable, *watch] if name == "watched" else [])
        found |= {f"{name}_s": seen["step_s"], f"{name}_cpu_s": seen["cpu_s"]}
    return found


def _run(args: argparse.Namespace, work: int, before: list[str]) -> dict[str, float]:
    """One run of the job; what its last line says."""
    job = [sys.executable, str(Path(__file__).resolve()), "--job", "--device", args.device]
    command = [*before, *job, "--steps", str(args.steps), "--work", str(work)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"the job failed:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _calibrate(args: argparse.Namespace) -> int:
    """Products in a step that make it about as long as it should be."""
    few = argparse.Namespace(**{**vars(args), "steps": WARMUP + 20})
    work = 8
    for _ in range(2):
        step_s = _run(few, work, [])["step_s"]
        work = max(1, round(work * STEP_S[args.device] / step_s))
    return work


# ---------------------------------------------------------------------------------- the job


def _job(args: argparse.Namespace) -> int:
    """A plain training loop: two loader workers, a forward pass of many layers, AdamW."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    width = 256 if args.device == "cpu" else 8192
    rows = 128 if args.device == "cpu" else 4096
    layer = torch.nn.Linear(width, width).to(args.device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4)
    loader = DataLoader(_samples(args.steps, rows, width), batch_size=None, num_workers=2)  # type: ignore[arg-type]
    times = []
    cpu, last = 0.0, time.perf_counter()
    for x in loader:
        hidden = x.to(args.device)
        for _ in range(args.work):
            hidden = torch.nn.functional.gelu(layer(hidden))
        loss = hidden.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if args.device == "cuda":
            torch.cuda.synchronize()  # a step's own end, for its own clock
        now = time.perf_counter()
        times.append(now - last)
        last = now
        if len(times) == WARMUP:
            cpu = time.process_time()
    cpu_s = (time.process_time() - cpu) / (len(times) - WARMUP)
    print(json.dumps({"step_s": statistics.median(times[WARMUP:]), "cpu_s": cpu_s}))
    return 0


def _samples(steps: int, rows: int, width: int) -> Any:
    """Rows made by the workers, at a fraction of the step's cost."""
    import torch

    class Samples(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return steps

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.randn(rows, width, generator=torch.Generator().manual_seed(index))

    return Samples()


if __name__ == "__main__":
    raise SystemExit(main())
