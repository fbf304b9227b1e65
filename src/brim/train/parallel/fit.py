"""Share a model among the ranks as their memory allows."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass

import torch

from brim.errors import ConfigError
from brim.model.memory import Memory, RowShape, estimate, recomputations, state_bytes
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.train.config import Config
from brim.train.parallel.choose import Parallelism, World, choose
from brim.train.parallel.memory import RankMemory, Spread, on_a_rank
from brim.train.parallel.ranks import Ranks
from brim.train.parallel.wrap import Alone, wrap
from brim.units import size

USABLE = 0.94
"""Of a device's memory: the rest is the context's, the libraries' and fragmentation's."""


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory of a model's step with its largest row."""

    config: Config
    model: Qwen3VL
    row: RowShape

    def of_rank(self, spread: Spread, recompute: Recompute | None = None) -> RankMemory:
        """``recompute``: blocks that forget their activations; by default the model's."""
        return on_a_rank(
            self.model, self.whole(recompute), spread, ahead=self.config.parallel.prefetch
        )

    def whole(self, recompute: Recompute | None = None) -> Memory:
        """The same on one device that holds all of the model."""
        dtype = next(self.model.parameters()).dtype
        return estimate(
            self.model,
            self.row,
            trained=self.config.trained,
            state_bytes=state_bytes(self.config.optimizer.states, dtype),
            recompute=recompute or self.model.recompute,
            keep_all=self.config.model.activation_budget == 1,
        )

    def least_recompute(self, spread: Spread, room: int) -> Recompute:
        """The least with which a step takes at most ``room`` bytes; all blocks when none does."""
        choices = list(recomputations(self.model, self.model.recompute))

        def total(choice: Recompute) -> int:
            return self.of_rank(spread, choice).total

        least = bisect_left(choices, -room, key=lambda choice: -total(choice))
        # each takes less than the one before it, but for the first of each tower's blocks
        near = choices[max(0, least - 2) : least] + choices[:1]
        found = [choice for choice in near if total(choice) <= room]
        return min(found, key=choices.index, default=choices[min(least, len(choices) - 1)])


def decide(config: Config, needs: Needs, world: World, *, together: bool) -> Parallelism:
    """The parallelism of a run; ``together``: under torchrun.  Raises ConfigError."""
    if config.parallel.data != "auto" and not together:
        raise ConfigError(
            f"parallel.data is {config.parallel.data}, and there is one process",
            hint="torchrun --nproc-per-node GPUS -m brim train CONFIG",
        )
    return choose(config.parallel, world, lambda spread: needs.of_rank(spread).total)


def share(
    config: Config,
    model: Qwen3VL,
    row: RowShape,
    rows: int,
    ranks: Ranks,
    say: Callable[[str], None],
) -> Alone:
    """Choose, set the recomputation and wrap; ``rows``: of a rank in a step."""
    needs, room = Needs(config, model, row), room_of(ranks.device)
    world = world_of(ranks, rows)
    choice = decide(config, needs, world, together=ranks.together)
    if ranks.together:
        say(f"{'parallel':13} {choice.data.value}: {choice.data.why}")
    if choice.memory:
        say(f"{'':13} {choice.memory}")
    if room is not None:
        model.recompute = needs.least_recompute(choice.spread, room)
        planned = needs.of_rank(choice.spread).total
        say(
            f"{'memory':13} {size(planned)} planned of {size(room)}; recomputed: "
            f"{model.recompute.text_blocks} text, {model.recompute.vision_blocks} vision blocks"
        )
    return wrap(model, ranks, config.parallel, choice)


def world_of(ranks: Ranks, rows: int) -> World:
    """``rows``: of a rank in a step."""
    room = room_of(ranks.device)
    return World(ranks=ranks.world, on_a_host=ranks.local_world, rows=rows, room=room)


def room_of(device: torch.device) -> int | None:
    """Bytes that a step may take; None on a CPU."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory * USABLE)
