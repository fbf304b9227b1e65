"""What a plan is worth, in numbers: fill, waste, and how evenly ranks are loaded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from brim.data.cost import Numbers
from brim.data.plan import Plan, deal
from brim.data.samples import Ints

QUANTILES = (0.0, 0.05, 0.5, 0.95, 1.0)


class Imbalance(msgspec.Struct, frozen=True):
    """Time that ranks wait for the slowest, as a share of useful time: Σ max / Σ mean - 1."""

    world: int
    random_samples: float
    """Equal numbers of samples a rank, in random order."""
    random_packed: float
    """The plan's rows, dealt in random order."""
    step: float
    """The plan, per optimizer step (ranks meet once a step)."""
    micro_step: float
    """The plan, per micro-step (ranks meet at every row, as sharded parameters make them)."""


class Bar(msgspec.Struct, frozen=True):
    """One bar of a histogram: values from ``low`` up to, but without, ``high``."""

    low: int
    high: int
    count: int


class Summary(msgspec.Struct, frozen=True):
    """An epoch in figures."""

    samples: int
    images: int
    tokens: int
    visual_tokens: int
    scored_tokens: int
    patches: int
    rows: int
    steps: int
    repeated_rows: int
    """Rows shown twice to fill the last step."""
    waste: float
    """Share of the rows' tokens that is padding."""
    padded_waste: float
    """The same for batches of 8 samples in random order, padded to the longest."""
    lengths: tuple[int, ...]
    """Tokens of a sample: quantiles 0, 5, 50, 95, 100 %."""
    row_patches: tuple[int, ...]
    """Patches of a row: the same quantiles."""
    histogram: tuple[Bar, ...]
    """Tokens of a sample."""
    overlong: dict[str, int]
    imbalance: tuple[Imbalance, ...]


def summarize(plan: Plan, worlds: Sequence[int], *, merge: int = 2) -> Summary:
    """The first epoch of a plan."""
    samples, epoch = plan.samples, plan.epoch(0)
    shown = epoch.rows.samples
    tokens = int(samples.length[shown].sum())
    patches = int(samples.patches[shown].sum())
    whole = len(epoch.rows) * plan.tokens_per_row
    return Summary(
        samples=len(shown),
        images=int(samples.images[shown].sum()),
        tokens=tokens,
        visual_tokens=patches // merge**2,
        scored_tokens=int(samples.scored[shown].sum()),
        patches=patches,
        rows=len(epoch.rows),
        steps=plan.steps_in(0),
        repeated_rows=epoch.repeated,
        waste=1 - tokens / whole,
        padded_waste=_padded_waste(samples.length[_shuffled(plan)], 8),
        lengths=_quantiles(samples.length[shown]),
        row_patches=_quantiles(epoch.rows.sums(samples.patches)),
        histogram=_histogram(samples.length[shown]),
        overlong=dict(samples.overlong),
        imbalance=tuple(
            imbalance(plan, world) for world in worlds if plan.rows_per_step % world == 0
        ),
    )


def _shuffled(plan: Plan) -> Ints:
    """The epoch's samples in random order."""
    return np.random.default_rng([plan.seed, 1]).permutation(plan.epoch(0).rows.samples)


def imbalance(plan: Plan, world: int) -> Imbalance:
    """How evenly ``world`` ranks are loaded, which must divide the rows of a step."""
    epoch = plan.epoch(0)
    steps = epoch.cost[epoch.order].reshape(-1, plan.rows_per_step)
    per_step, per_micro = [], []
    for cost in steps:
        shares = cost[np.array(deal(cost, world))]  # [world, rows of a rank]
        per_step.append(shares.sum(axis=1))
        per_micro.append(shares.T)
    chance = np.random.default_rng([plan.seed, 2]).permutation(epoch.cost[epoch.order])
    return Imbalance(
        world=world,
        random_samples=_excess(_sample_costs(plan, world)),
        random_packed=_excess(chance.reshape(-1, world)),
        step=_excess(np.array(per_step)),
        micro_step=_excess(np.concatenate(per_micro)),
    )


def _excess(costs: Numbers) -> float:
    """[meetings, ranks] → Σ max / Σ mean - 1."""
    return float(costs.max(axis=1).sum() / costs.mean(axis=1).sum() - 1)


def _sample_costs(plan: Plan, world: int) -> Numbers:
    """[steps, ranks] costs where each rank takes as many samples as a row holds on average."""
    samples = plan.samples
    order = _shuffled(plan)
    each = max(1, round(len(order) / len(plan.epoch(0).rows)))
    steps = len(order) // (each * world)
    if not steps:
        return np.ones((1, world))
    costs = samples.cost[order[: steps * each * world]]
    result: Numbers = costs.reshape(steps, world, each).sum(axis=2)
    return result


def _padded_waste(lengths: Ints, batch: int) -> float:
    whole = lengths[: max(len(lengths) // batch * batch, 1)]
    batches = whole.reshape(-1, min(batch, len(whole)))
    return float(1 - batches.sum() / (batches.max(axis=1) * batches.shape[1]).sum())


def _quantiles(values: Ints | Numbers) -> tuple[int, ...]:
    return tuple(int(v) for v in np.quantile(values, QUANTILES))


def _histogram(values: Ints) -> tuple[Bar, ...]:
    """Twelve bars or fewer with round borders."""
    top = int(values.max()) + 1
    width = max(1, -(-top // 12))
    unit = 10 ** max(0, len(str(width)) - 1)
    width = -(-width // unit) * unit
    edges = np.arange(0, top + width, width)
    counts, _ = np.histogram(values, edges)
    return tuple(
        Bar(int(low), int(high), int(count))
        for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
    )
