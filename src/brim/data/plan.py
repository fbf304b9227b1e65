"""Who trains on what, when: a function of the data, the seed and the settings, and of nothing else.

An epoch's samples are shuffled, packed into rows, and the rows dealt to optimizer steps.  Rows of
like cost go side by side in cohorts, so that ranks which take one row each wait little for each
other; the order of cohorts is random.  The ranks of a step share its rows by cost.

The number of ranks decides only who takes which row of a step, never what a step holds: 1, 2, 4
or 8 ranks see the same steps.  A position in all this is one integer, the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from brim.data.cost import Numbers
from brim.data.packing import Rows, pack
from brim.data.samples import Samples
from brim.errors import ConfigError

Ints = NDArray[np.int64]

COHORT = 256
"""Most rows of like cost that lie side by side: a step of fewer is one cohort, so that up to as
many ranks are balanced row by row."""


@dataclass(frozen=True, slots=True)
class RowTask:
    """One row to make."""

    step: int
    number: int
    """Its place in the step, the same on any number of ranks."""
    samples: tuple[int, ...]
    salt: int
    """Seeds the choice of replacements for bad samples."""


@dataclass(frozen=True, slots=True)
class Epoch:
    """An epoch's rows in their order; step k holds rows k·R to (k + 1)·R - 1."""

    rows: Rows
    order: Ints
    """Numbers of ``rows``, dealt to steps; a few at the end repeat the first to fill a step."""
    cost: Numbers
    """Of each of ``rows``."""
    pictures: NDArray[np.bool_]
    """Whether each of ``rows`` has any."""
    repeated: int


@dataclass
class Plan:
    """The rows of a run.  ``weights``: for each source, how often an epoch shows its samples."""

    samples: Samples
    weights: Sequence[float]
    tokens_per_row: int
    rows_per_step: int
    seed: int
    starts: list[int] = field(default_factory=lambda: [0])
    """First step of each epoch, as far as known; part of a loader's saved state."""
    _epochs: dict[int, Epoch] = field(default_factory=dict, repr=False)

    def epoch(self, number: int) -> Epoch:
        """The rows of an epoch, from 0."""
        if number not in self._epochs:
            # the one being finished and the one being prefetched
            while len(self._epochs) > 1:
                del self._epochs[min(self._epochs)]
            self._epochs[number] = self._make(number)
        return self._epochs[number]

    def steps_in(self, epoch: int) -> int:
        """Optimizer steps of an epoch."""
        return len(self.epoch(epoch).order) // self.rows_per_step

    def steps(self, epochs: int) -> int:
        """Optimizer steps of the first ``epochs`` epochs."""
        while len(self.starts) <= epochs:
            self.starts.append(self.starts[-1] + self.steps_in(len(self.starts) - 1))
        return self.starts[epochs]

    def locate(self, step: int) -> tuple[int, int]:
        """(epoch, step in the epoch) of a step of the run."""
        epoch = max(k for k, start in enumerate(self.starts) if start <= step)
        while self.steps(epoch + 1) <= step:
            epoch += 1
        return epoch, step - self.starts[epoch]

    def step(self, step: int) -> list[RowTask]:
        """All rows of a step, in an order that no number of ranks changes."""
        number, inside = self.locate(step)
        epoch = self.epoch(number)
        first = inside * self.rows_per_step
        return [
            RowTask(
                step, place, tuple(epoch.rows.row(int(row)).tolist()), self._salt(number, int(row))
            )
            for place, row in enumerate(epoch.order[first : first + self.rows_per_step])
        ]

    def rows(self, step: int, rank: int, world: int) -> list[RowTask]:
        """The rows that ``rank`` of ``world`` makes for a step, micro-step by micro-step.

        Raises ConfigError when the rows of a step do not divide among the ranks.
        """
        tasks = self.step(step)
        return [tasks[k] for k in self.share(step, world)[rank]]

    def share(self, step: int, world: int) -> list[list[int]]:
        """For each rank, its rows' places in the step; micro-step j costs all ranks about alike."""
        if self.rows_per_step % world:
            raise ConfigError(
                f"data.rows_per_step is {self.rows_per_step}, which {world} ranks cannot share",
                hint=f"a multiple of {world} can be shared",
            )
        number, inside = self.locate(step)
        epoch = self.epoch(number)
        first = inside * self.rows_per_step
        return deal(epoch.cost[epoch.order[first : first + self.rows_per_step]], world)

    def tower(self, step: int, world: int, *, always: bool = False) -> list[bool]:
        """For each micro-step of a step, whether all ranks run the vision tower.

        They do where any rank's row has pictures (a stand-in never brings any to a row without),
        and in the first and the last, where they meet over gradients; ``always``: in each.
        """
        if not self.samples.patches.any():
            return [False] * (self.rows_per_step // world)
        number, inside = self.locate(step)
        epoch = self.epoch(number)
        first = inside * self.rows_per_step
        pictures = epoch.pictures[epoch.order[first : first + self.rows_per_step]]
        turns = np.array(self.share(step, world)).T
        runs = [always or bool(pictures[turn].any()) for turn in turns]
        return [True, *runs[1:-1], *([True] if len(runs) > 1 else [])]

    def _make(self, number: int) -> Epoch:
        rng = np.random.default_rng([self.seed, number])
        entries = rng.permutation(_entries(self.samples.source, self.weights, rng))
        rows = pack(self.samples.length, entries, self.tokens_per_row)
        cost = rows.sums(self.samples.cost)
        order = _cohorts(cost, rng, min(COHORT, self.rows_per_step))
        missing = -len(order) % self.rows_per_step
        order = np.concatenate([order, np.resize(order, missing)])
        pictures = rows.sums(self.samples.patches) > 0
        return Epoch(rows, order, cost, pictures, missing)

    def _salt(self, epoch: int, row: int) -> int:
        return int(np.random.SeedSequence([self.seed, epoch, row]).generate_state(1)[0])


def _entries(source: Ints, weights: Sequence[float], rng: np.random.Generator) -> Ints:
    """Sample ids of an epoch: each as often as its source's weight says; the fraction is drawn."""
    parts = []
    for number, weight in enumerate(weights):
        ids = np.flatnonzero(source == number)
        whole = int(weight)
        parts += [ids] * whole
        drawn = round((weight - whole) * len(ids))
        if drawn:
            parts.append(np.sort(rng.choice(ids, drawn, replace=False)))
    return np.concatenate(parts)


def _cohorts(cost: Numbers, rng: np.random.Generator, size: int) -> Ints:
    """Rows in cohorts of like cost, the cohorts in random order, an incomplete one last."""
    order = np.argsort(-cost, kind="stable")
    whole = len(order) // size * size
    # which rows make the incomplete cohort is chance, not their cost
    left_out = np.sort(rng.choice(len(order), len(order) - whole, replace=False))
    kept = np.delete(order, left_out).reshape(-1, size)
    cohorts = rng.permuted(kept[rng.permutation(len(kept))], axis=1)
    return np.concatenate([cohorts.reshape(-1), order[left_out]])


def deal(cost: Numbers, world: int) -> list[list[int]]:
    """Share rows among ranks: equal numbers, near equal sums, micro-step j of near equal cost.

    Rows are taken by falling cost, ``world`` at a time (one micro-step); within it the dearest goes
    to the rank that has the least so far.
    """
    shares: list[list[int]] = [[] for _ in range(world)]
    total = np.zeros(world)
    order = np.argsort(-cost, kind="stable")
    for start in range(0, len(order), world):
        rows = order[start : start + world]
        for rank, row in zip(np.argsort(total, kind="stable").tolist(), rows.tolist(), strict=True):
            shares[rank].append(row)
            total[rank] += cost[row]
    return shares
