"""How long ranks wait for the slowest: by chance, and by brim's plan.

    python benchmarks/balance.py [--samples 60000] [--rows 2]

Samples are drawn like LLaVA's: 85 % with one picture of 300 to 1,300 pixels a side, log-normal
texts around 200 tokens.  Cost is the FLOPs of Qwen3-VL-4B.  Waiting is Σ over meetings of the
slowest rank's cost, over the mean, minus 1.  For data of your own: brim plan CONFIG --world ….
"""

from __future__ import annotations

import argparse
import time

import numpy as np
from rich.console import Console
from rich.table import Table

from brim.data.cost import Cost
from brim.data.plan import Plan
from brim.data.samples import Samples
from brim.data.stats import imbalance
from brim.units import percent

TOKENS_PER_ROW = 8192
WORLDS = (2, 4, 8, 16, 32, 64, 128, 256)


def llava_like(count: int, seed: int = 0) -> Samples:
    """Sizes alone; no picture is made."""
    rng = np.random.default_rng(seed)
    sides = rng.integers(300, 1300, (2, count)) // 32
    visual = np.where(rng.random(count) < 0.85, sides.prod(axis=0), 0)
    text = (rng.lognormal(5.3, 0.7, count) + 30).astype(np.int64)
    length = np.minimum(visual + text, TOKENS_PER_ROW)
    patches = visual * 4
    scored = text // 2
    return Samples(
        source=np.zeros(count, np.int64),
        record=np.arange(count),
        length=length,
        scored=scored,
        images=(patches > 0).astype(np.int64),
        patches=patches,
        patch_squares=patches**2,
        max_pixels=np.zeros(count, np.int64),
        cost=Cost().of(length, length**2, scored, patches, patches**2),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=60_000)
    parser.add_argument("--rows", type=int, default=2, help="of each rank in a step")
    args = parser.parse_args()
    samples = llava_like(args.samples)
    table = Table(
        "ranks", "random samples", "random rows", "plan, a step", "plan, a row", "planned in",
        title=f"Waiting, {args.samples:,} samples, {args.rows} rows a rank and step",
        title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for world in WORLDS:
        began = time.perf_counter()
        plan = Plan(samples, [1.0], TOKENS_PER_ROW, args.rows * world, 0)
        found = imbalance(plan, world)
        seconds = time.perf_counter() - began
        shares = (found.random_samples, found.random_packed, found.step, found.micro_step)
        table.add_row(str(world), *map(percent, shares), f"{seconds:.2f} s")
    Console().print(table)


if __name__ == "__main__":
    main()
