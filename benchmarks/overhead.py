"""What watching costs: one job that trains in turns with and without brim's hooks.

    python benchmarks/overhead.py [--pairs N] [--out FILE]     20 ms steps on the CPU
    python benchmarks/overhead.py --device cuda                100 ms steps on a GPU
    python benchmarks/overhead.py --whole                      whole runs with and without brim

The job runs under ``brim diagnose``; when brim's profiler window is over, it switches the hooks
on for one step and off for the next, or the other way round: the order is drawn for each pair.
Neighbouring steps, because what other tenants of a machine do to a step's time lasts longer than a
step: over the same minute, pairs of single steps tell a difference nine times smaller than pairs of
half-second blocks do.  A median over pairs is what a cost is; the interval beside it holds 95 % of
the medians of pairs drawn anew (bootstrap).

The sampler's thread runs on in both arms at its own times, so its cost is told apart by where its
samples fall: pairs with no sample tell the hooks' cost, pairs with one sample in one of the two
steps tell a sample's, pairs in which lines were written tell a write's.  The total is what a step
costs with as many samples and writes as there were on average.

Beside the wall time stands the CPU time of the job's process per step (training thread, hooks,
sampler): it hardly moves when others use the machine.  Hooks in loader workers and brim's own
process stay as they are in both arms; ``--whole`` compares whole runs, which hold those too.
Exit code 1: the total is above 1 % of the step.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
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
DRAWS = 400
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
    return int(summary["wall"]["total"][0] > LIMIT)


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
"""``on_s``, ``off_s``, ``on_cpu_s``, ``off_cpu_s``: wall and CPU seconds per step; ``on_samples``,
``off_samples``, ``on_writes``, ``off_writes``: what the sampler did in that step."""
Range = tuple[float, float, float]
"""A value, and the ends of its interval."""
PARTS = ("hooks", "samples", "writes", "total")


def _summary(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Costs as shares of the step without hooks (``wall``, ``cpu``) and as CPU seconds a step."""
    wall = [p["on_s"] / p["off_s"] - 1 for p in pairs]
    cpu = [p["on_cpu_s"] - p["off_cpu_s"] for p in pairs]
    step_s = statistics.median(p["off_s"] for p in pairs)
    return {
        "step_s": step_s,
        "wall": intervals(pairs, wall),
        "cpu_s": intervals(pairs, cpu),
        "cpu": intervals(pairs, [c / step_s for c in cpu]),
    }


def intervals(pairs: Sequence[Pair], costs: Sequence[float]) -> dict[str, Range]:
    """Each part's cost with its 95 % interval, from pairs drawn with replacement."""
    rng, both = random.Random(0), list(zip(pairs, costs, strict=True))
    drawn = [parts(rng.choices(both, k=len(both))) for _ in range(DRAWS)]
    found, out = parts(both), {}
    for name in found:
        ordered = sorted(draw[name] for draw in drawn if name in draw)
        out[name] = (found[name], ordered[len(ordered) // TAIL], ordered[-1 - len(ordered) // TAIL])
    return out


def parts(both: Sequence[tuple[Pair, float]]) -> dict[str, float]:
    """What a step pays for hooks, samples, writes and in all; whole runs only know the total."""
    if "on_samples" not in both[0][0]:
        return {"total": statistics.median(cost for _, cost in both)}
    groups: dict[tuple[float, float], list[float]] = {}
    for p, cost in both:
        more = (p["on_samples"] - p["off_samples"], p["on_writes"] - p["off_writes"])
        groups.setdefault(more, []).append(cost)
    middle = {more: statistics.median(costs) for more, costs in groups.items()}
    hooks = middle.get((0, 0), 0.0)
    sample = (middle.get((1, 0), hooks) - middle.get((-1, 0), hooks)) / 2
    write = middle.get((1, 1), hooks + sample) - hooks - sample
    steps = 2 * len(both)
    samples = sample * sum(p["on_samples"] + p["off_samples"] for p, _ in both) / steps
    writes = write * sum(p["on_writes"] + p["off_writes"] for p, _ in both) / steps
    return dict(zip(PARTS, (hooks, samples, writes, hooks + samples + writes), strict=True))


def _report(args: argparse.Namespace, summary: dict[str, Any]) -> Iterator[str]:
    what = "runs" if args.whole else "steps"
    yield f"{args.device}: {args.pairs} pairs of {what}, {summary['step_s'] * 1e3:.1f} ms a step"
    for name in summary["wall"]:
        wall, cpu, used = (summary[key][name] for key in ("wall", "cpu", "cpu_s"))
        yield (
            f"{name:>8}: wall {wall[0]:+.2%} ({wall[1]:+.2%} to {wall[2]:+.2%}), "
            f"CPU {cpu[0]:+.2%} ({cpu[1]:+.2%} to {cpu[2]:+.2%}) of a step, {used[0] * 1e6:.0f} µs"
        )


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
            samples, writes = switch.samples.taken, switch.samples.written
            pair[f"{name}_s"], pair[f"{name}_cpu_s"] = _take(steps, 1)
            pair[f"{name}_samples"] = switch.samples.taken - samples
            pair[f"{name}_writes"] = switch.samples.written - writes
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


class Samples:
    """Counts the sampler's work, and keeps its thread going while the hooks are off.

    It goes on at its own times in both arms: waking it up for an arm would put the switch of
    threads, which is most of what a sample costs, into every step of that arm.
    """

    def __init__(self, sampler: Any, hooks: Any) -> None:
        self.taken, self.written = 0, 0
        self._sample, self._write = sampler._sample, sampler.owner.write
        sampler._sample, sampler.owner.write = self.sample, self.write
        module = sys.modules[type(sampler).__module__]
        vars(module)["_recorder"] = _Never(hooks)

    def sample(self, wall: float, late: float) -> None:
        self.taken += 1
        self._sample(wall, late)

    def write(self) -> None:
        self.written += 1
        self._write()


class _Never:
    """The recorder's module as the sampler sees it: never off."""

    off = False

    def __init__(self, module: Any) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


class Switch:
    """Brim's hooks in this process: off, they pass through as they do after the measured steps."""

    def __init__(self) -> None:
        from _brim_hooks import recorder, transfers

        if recorder.current is None:
            raise SystemExit("no step was recorded: is the job under brim diagnose?")
        self.hooks, self.transfers, self.recorder = recorder, transfers, recorder.current
        self.samples = Samples(self.recorder.sampler, recorder)

    def turn(self, *, on: bool) -> None:
        if on:
            self.hooks.off, self.hooks.current = False, self.recorder
            self.recorder.restart()
            self.recorder.plan.first = time.perf_counter()  # the window ends after two minutes
            self.transfers.arm()
        else:
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
