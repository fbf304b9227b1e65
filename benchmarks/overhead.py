"""What watching costs: one job that trains in turns with and without brim's hooks.

    python benchmarks/overhead.py [--pairs N] [--out FILE]     20 ms steps on the CPU
    python benchmarks/overhead.py --device cuda                100 ms steps on a GPU
    python benchmarks/overhead.py --whole                      whole runs with and without brim

The job runs under ``brim diagnose``; when brim's profiler window is over, it switches the hooks
on for one step and off for the next, or the other way round: the order is drawn for each pair.  A
pair says the relative difference of its two steps by the job's own clock.  Neighbouring steps,
because what other tenants of a machine do to a step's time lasts longer than a step: over the same
minute, pairs of single steps tell a difference nine times smaller than pairs of half-second blocks
do.  The median over the pairs is printed with its binomial interval of order statistics, which asks
nothing of the distribution.  What comes in some steps only (a sample, a line written) moves that
median by its mean cost, as long as it is small beside the noise of a step.

Beside the wall time stands the CPU time of the job's process per step (training thread, hooks,
sampler): it hardly moves when others use the machine.  Hooks in loader workers and brim's own
process stay as they are in both arms; ``--whole`` compares whole runs, which hold those too.
Exit code 1: the median is above 1 % of the step.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

STEP_S = {"cpu": 0.020, "cuda": 0.100}
PAIRS = {"cpu": 1200, "cuda": 200}
WARMUP = 50
"""Steps before the first pair: the rhythm is steady, and brim's profiler window over."""
WHOLE = 300
"""Steps of a run with ``--whole``."""
LIMIT = 0.01
TAIL = 40
"""One in so many lies on each side of a 95 % interval."""


def main() -> int:
    args = _arguments()
    if args.job:
        return _job(args)
    work = args.work or _calibrate(args)
    with tempfile.TemporaryDirectory() as runs:
        pairs = _whole(args, work, Path(runs)) if args.whole else _steps_of(args, work, Path(runs))
    summary = _summary(pairs)
    for line in _report(args, summary):
        print(line)
    if args.out:
        result = {"device": args.device, "work": work, **summary, "pairs": pairs}
        args.out.write_text(json.dumps(result, indent=2) + "\n")
    return int(summary["wall"][0] > LIMIT)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--device", choices=tuple(STEP_S), default="cpu")
    parser.add_argument("--pairs", type=int, help="of steps (1200; cuda: 200), of runs (10)")
    parser.add_argument("--whole", action="store_true", help="compare whole runs, not steps")
    parser.add_argument("--work", type=int, help="matrix products a step (found by itself)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all figures as JSON")
    parser.add_argument("--job", choices=("alone", "pairs"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.pairs = args.pairs or (10 if args.whole else PAIRS[args.device])
    return args


# ----------------------------------------------------------------------------- statistics

Pair = dict[str, float]
"""``on_s``, ``off_s``, ``on_cpu_s``, ``off_cpu_s``: wall and CPU seconds per step."""
Range = tuple[float, float, float]
"""Median, and the ends of its interval."""


def _summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Differences of the pairs: shares of the step without hooks, and CPU seconds a step."""
    cpu = [p["on_cpu_s"] - p["off_cpu_s"] for p in pairs]
    return {
        "step_s": statistics.median(p["off_s"] for p in pairs),
        "wall": interval([p["on_s"] / p["off_s"] - 1 for p in pairs]),
        "cpu_s": interval(cpu),
        "cpu": interval([c / p["off_s"] for c, p in zip(cpu, pairs, strict=True)]),
    }


def interval(values: Sequence[float]) -> Range:
    """The median and its 95 % interval: the order statistics k and n + 1 - k with the largest k
    for which a fair coin shows fewer than k heads in n throws at most 2.5 % of the time."""
    ordered = sorted(values)
    n, k, below = len(ordered), 0, 0
    while k < n // 2:
        below += math.comb(n, k)
        if below > 2**n // TAIL:  # whole numbers: 2**n is none that a float can hold
            break
        k += 1
    low, high = (ordered[k - 1], ordered[n - k]) if k else (ordered[0], ordered[-1])
    return statistics.median(ordered), low, high


def _report(args: argparse.Namespace, summary: dict[str, Any]) -> Iterator[str]:
    what = "runs" if args.whole else "steps"
    yield f"{args.device}: {args.pairs} pairs of {what}, {summary['step_s'] * 1e3:.1f} ms a step"
    for name, key in (("wall time", "wall"), ("CPU time of the job", "cpu")):
        middle, low, high = summary[key]
        yield f"{name}: {middle:+.2%} of the step (95 %: {low:+.2%} to {high:+.2%})"
    middle, low, high = (value * 1e6 for value in summary["cpu_s"])
    yield f"hooks and sampler: {middle:.0f} µs of CPU a step (95 %: {low:.0f} to {high:.0f})"


# ----------------------------------------------------------------------------- two ways to compare


def _steps_of(args: argparse.Namespace, work: int, runs: Path) -> list[Pair]:
    found: list[Pair] = _run(args, work, runs, job="pairs", watched=True)["pairs"]
    return found


def _whole(args: argparse.Namespace, work: int, runs: Path) -> list[Pair]:
    """Pairs of short runs; their order changes from pair to pair."""
    pairs = []
    for number in range(args.pairs):
        seen = {}
        for watched in (number % 2 == 0, number % 2 != 0):
            name = "on" if watched else "off"
            found = _run(args, work, runs, job="alone", watched=watched)
            seen |= {f"{name}_s": found["step_s"], f"{name}_cpu_s": found["cpu_s"]}
        pairs.append(seen)
        print(f"{number:>4} {seen['on_s'] / seen['off_s'] - 1:+.2%}", flush=True)
    return pairs


def _run(args: argparse.Namespace, work: int, runs: Path, *, job: str, watched: bool) -> Any:
    """One run of the job; what its last line says."""
    brim = [sys.executable, "-m", "brim", "diagnose", "--runs", str(runs), "--steps", "1000000"]
    command = [sys.executable, str(Path(__file__).resolve()), "--job", job, "--work", str(work)]
    command += ["--device", args.device, "--pairs", str(args.pairs)]
    done = subprocess.run(
        [*brim, "--", *command] if watched else command,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"the job failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def _calibrate(args: argparse.Namespace) -> int:
    """Products in a step that make it about as long as it should be."""
    few = argparse.Namespace(**{**vars(args), "pairs": 1})
    work = 8
    for _ in range(2):
        step_s = _run(few, work, Path(), job="alone", watched=False)["step_s"]
        work = max(1, round(work * STEP_S[args.device] / step_s))
    return work


# ----------------------------------------------------------------------------- the job


def _job(args: argparse.Namespace) -> int:
    """A plain training loop: two loader workers, a forward pass of many layers, AdamW."""
    steps = _steps(args, WARMUP + (2 * args.pairs if args.job == "pairs" else WHOLE))
    for _ in range(WARMUP):
        next(steps)
    if args.job == "alone":
        step_s, cpu_s = _take(steps, WHOLE)
        print(json.dumps({"step_s": step_s, "cpu_s": cpu_s}))
        return 0
    switch, rng, pairs = Switch(), random.Random(0), []
    for _ in range(args.pairs):
        pair: Pair = {}
        for name in rng.sample(("on", "off"), 2):
            switch.turn(on=name == "on")
            pair[f"{name}_s"], pair[f"{name}_cpu_s"] = _take(steps, 1)
        pairs.append(pair)
    switch.turn(on=True)
    print(json.dumps({"pairs": pairs}))
    return 0


def _take(steps: Iterator[None], count: int) -> tuple[float, float]:
    """Mean wall and CPU seconds of the next steps."""
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(count):
        next(steps)
    return (time.perf_counter() - wall) / count, (time.process_time() - cpu) / count


class Gate:
    """Stands for the lock that the sampler waits for; while it is closed, the sampler rests.

    Ending and starting the thread instead would put a thread's birth into every step with hooks.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.open, self.held, self.resting = True, True, False

    def turn(self, *, on: bool) -> None:
        """Closing waits until the sampler rests: the hooks' end would end its thread."""
        with self.changed:
            self.open = on
            self.changed.notify_all()
            if not self.changed.wait_for(lambda: on or self.resting, timeout=5.0):
                raise SystemExit("the sampler has ended: see the run's notes")

    def locked(self) -> bool:
        return self.held

    def release(self) -> None:
        with self.changed:
            self.held = False
            self.changed.notify_all()

    def acquire(self, blocking: bool = True, timeout: float = 0.0) -> bool:
        """True at once when it is free, else False after ``timeout`` with the gate open."""
        with self.changed:
            while timeout > 0 and self.held:
                if self.open:
                    begin = time.perf_counter()
                    self.changed.wait(timeout)
                    timeout -= time.perf_counter() - begin
                else:
                    self.resting = True
                    self.changed.notify_all()
                    self.changed.wait()
                    self.resting = False
            return not self.held


class Switch:
    """Brim's hooks in this process: off, they pass through as they do after the measured steps."""

    def __init__(self) -> None:
        from _brim_hooks import recorder, transfers

        self.hooks, self.transfers, self.gate = recorder, transfers, Gate()
        if recorder.current is None:
            raise SystemExit("no step was recorded: is the job under brim diagnose?")
        self.recorder = recorder.current
        self.recorder.sampler.stop()
        self.recorder.sampler.running = self.gate
        self.recorder.sampler.start()

    def turn(self, *, on: bool) -> None:
        if on:
            self.hooks.off, self.hooks.current = False, self.recorder
            self.recorder.restart()
            self.recorder.plan.first = time.perf_counter()  # the window ends after two minutes
            self.transfers.arm()
            self.gate.turn(on=True)
        else:
            self.gate.turn(on=False)
            self.transfers.disarm()
            self.hooks.off, self.hooks.current = True, None


def _steps(args: argparse.Namespace, count: int) -> Iterator[None]:
    """Train; one item per step that has ended."""
    import torch
    from torch.utils.data import DataLoader

    torch.manual_seed(0)
    width = 256 if args.device == "cpu" else 8192
    rows = 128 if args.device == "cpu" else 4096
    layer = torch.nn.Linear(width, width).to(args.device)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4)
    loader = DataLoader(_samples(count, rows, width), batch_size=None, num_workers=2)  # type: ignore[arg-type]
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
        yield


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
