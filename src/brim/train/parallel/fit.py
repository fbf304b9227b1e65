"""Share a model among the ranks as their memory allows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from brim.errors import ConfigError
from brim.model.memory import RowShape, estimate, recomputations
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.train.config import Config
from brim.train.parallel.choose import Parallelism, World, choose
from brim.train.parallel.memory import RankMemory, Spread, on_a_rank
from brim.train.parallel.ranks import Ranks
from brim.train.parallel.wrap import Alone, wrap
from brim.units import size

USABLE = 0.94
"""Of a device's memory: the rest is the context's, the libraries' and fragmentation's."""
_STATE_BYTES = {"bfloat16": 4, "float32": 12}


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory of a model's step with its largest row."""

    config: Config
    model: Qwen3VL
    row: RowShape

    def of_rank(self, spread: Spread, recompute: Recompute | None = None) -> RankMemory:
        """``recompute``: blocks that forget their activations; by default the model's."""
        whole = estimate(
            self.model,
            self.row,
            trained=self.config.trained,
            state_bytes=_STATE_BYTES[self.config.optimizer.states],
            recompute=recompute or self.model.recompute,
        )
        return on_a_rank(self.model, whole, spread, ahead=self.config.parallel.prefetch)

    def least_recompute(self, spread: Spread, room: int) -> Recompute:
        """The least with which a step takes at most ``room`` bytes; all blocks when none does."""
        model = self.model
        last = model.recompute
        for last in recomputations(model, model.recompute):
            if self.of_rank(spread, last).total <= room:
                break
        return last


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
    world = World(ranks=ranks.world, on_a_host=ranks.local_world, rows=rows, room=room)
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


def room_of(device: torch.device) -> int | None:
    """Bytes that a step may take; None on a CPU."""
    if device.type != "cuda":
        return None
    return int(torch.cuda.get_device_properties(device).total_memory * USABLE)
