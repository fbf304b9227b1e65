"""What fits into a device: optimizer states, parallelism and recomputation, with the reason.

States that keep more bits are preferred as long as nothing is computed twice for them; beyond that,
bfloat16 with recomputation comes before 8 bits, because it costs time only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brim.model.kernels import Choice
from brim.model.memory import STATES, Memory, RowShape
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.train.config import Config
from brim.train.parallel.choose import Parallelism, World
from brim.train.parallel.fit import Needs, decide
from brim.train.parallel.memory import RankMemory
from brim.units import size


@dataclass(frozen=True, kw_only=True, slots=True)
class Option:
    """One kind of optimizer states, and what a step takes with it."""

    states: str
    parallelism: Parallelism
    recompute: Recompute
    again: bool
    """Whether blocks are recomputed beyond those that the configuration names."""
    whole: Memory
    """Of one device that holds all of the model."""
    rank: RankMemory
    room: int | None
    """Bytes that a step may take; None where memory is no limit."""

    @property
    def fits(self) -> bool:
        return self.room is None or self.rank.total <= self.room


def options(
    config: Config, model: Qwen3VL, row: RowShape, world: World, *, together: bool = False
) -> list[Option]:
    """The states that the configuration allows, most bits first.  Raises ConfigError."""
    asked = config.optimizer.states
    found = []
    for states in (asked,) if asked else STATES:
        needs = Needs(with_states(config, states), model, row)
        choice = decide(config, needs, world, together=together)
        recompute = model.recompute
        if world.room is not None:
            recompute = needs.least_recompute(choice.spread, world.room)
        found.append(
            Option(
                states=states,
                parallelism=choice,
                recompute=recompute,
                again=recompute != model.recompute,
                whole=needs.whole(recompute),
                rank=needs.of_rank(choice.spread, recompute),
                room=world.room,
            )
        )
    return found


def pick(found: Sequence[Option]) -> Choice[Option]:
    """The best of them, and why it is."""
    if len(found) == 1:
        return Choice(found[0], "as configured")
    if found[0].room is None:
        return Choice(found[0], "memory is no limit here")
    for number, option in enumerate(found):
        if option.fits and not option.again and option.states != "8bit":
            better = f"; {_cost(found[number - 1])}" if number else ""
            return Choice(option, f"a step fits without computing anything twice{better}")
    if found[0].fits and found[0].recompute == found[1].recompute:
        blocks = _blocks(found[0].recompute)
        return Choice(found[0], f"a step fits with {blocks}, and fewer bits would change nothing")
    for option in found[1:]:
        if option.fits:
            other = found[0] if option is found[1] else found[1]
            twice = f"with {_blocks(option.recompute)}" if option.again else "as it is"
            return Choice(option, f"a step fits {twice}; {_cost(other)}")
    last = found[-1]
    assert last.room is not None
    return Choice(
        last,
        f"nothing fits: a step takes {size(last.rank.total)} of {size(last.room)} even so; lower "
        "data.tokens_per_row, freeze parts or take more devices",
    )


def with_states(config: Config, states: str) -> Config:
    return replace(config, optimizer=replace(config.optimizer, states=states))


def _cost(option: Option) -> str:
    """What a choice would cost that was not taken."""
    if option.fits and option.again:
        return f"{option.states} would need {_blocks(option.recompute)}"
    if option.fits:
        return f"{option.states} would fit too"
    assert option.room is not None
    return (
        f"{option.states} would take {size(option.rank.total)} of {size(option.room)} with "
        f"{_blocks(option.recompute)}"
    )


def _blocks(recompute: Recompute) -> str:
    text, vision = recompute.text_blocks, recompute.vision_blocks
    named = f"{text} text and {vision} vision blocks recomputed"
    return f"{named}, inputs on the host" if recompute.offload else named
