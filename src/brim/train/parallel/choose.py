"""Which parallelism a run takes, and why.

The forms differ in what a rank keeps and what it sends.  Bytes a parameter of a half-precision
model with n ranks, k rows a rank and step, gradients reduced in float32 when sharded:

============================  ==============================  ===================================
form                          kept beside the shard           sent and received, times (n - 1) / n
============================  ==============================  ===================================
ddp                           all of it                       4, once a step
sharded, gathered, once       2 (weights) + 4 (gradients)     2 + 4
sharded, gathered             2 (weights)                     2 + 4 k
sharded, once                 4 (gradients)                   4 k + 4
sharded                       nothing                         8 k
============================  ==============================  ===================================

So they are tried from the top, and the first that fits without recomputation is taken (never
"once" alone, which keeps more and sends more than "gathered" alone, unless it is asked for).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from brim.errors import ConfigError
from brim.model.kernels import Choice
from brim.train.config import ParallelTable
from brim.train.parallel.memory import Spread
from brim.units import size

Peak = Callable[[Spread], int]
"""Bytes of a rank's peak without recomputation."""


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """What a choice depends on."""

    ranks: int
    on_a_host: int
    rows: int
    """Rows of a rank in one optimizer step."""
    room: int | None
    """Bytes of a device that a step may take; None where that is no limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Parallelism:
    """The decision; ``data`` is alone, ddp, fsdp or hsdp."""

    data: Choice[str]
    spread: Spread = field(default_factory=Spread)
    memory: str = ""
    """Why ``spread`` keeps what it keeps; empty where nothing is sharded."""

    @property
    def sharded(self) -> bool:
        return self.data.value in ("fsdp", "hsdp")


def choose(table: ParallelTable, world: World, peak: Peak) -> Parallelism:
    """Raises ConfigError when the table asks for what these ranks cannot do."""
    if table.data != "auto":
        return _asked(table, world, peak)
    if world.ranks == 1:
        return Parallelism(data=Choice("alone", "there is one rank"))
    if world.room is None:
        return Parallelism(data=Choice("ddp", "memory is no limit on these devices"))
    copy = peak(Spread())
    if copy <= world.room:
        why = f"a copy on every rank takes {size(copy)} of {size(world.room)}"
        return Parallelism(data=Choice("ddp", why))
    why = f"a copy on every rank would take {size(copy)} of {size(world.room)}"
    inside = _spread(table, world, peak, world.on_a_host) if _several_hosts(world) else None
    if inside is not None and peak(inside) <= world.room:
        return _sharded("hsdp", f"{why}; the ranks of a host can share one", inside, peak)
    return _sharded("fsdp", why, _spread(table, world, peak, world.ranks), peak)


def _asked(table: ParallelTable, world: World, peak: Peak) -> Parallelism:
    why = "as configured"
    if table.data == "ddp":
        return Parallelism(data=Choice("ddp", why))
    shards = world.ranks
    if table.data == "hsdp":
        shards = table.shard_ranks or world.on_a_host
        if world.ranks % shards or shards in (1, world.ranks):
            raise ConfigError(
                f"parallel.data is hsdp, and {world.ranks} ranks do not make several groups of "
                f"{shards}",
                hint="set parallel.shard_ranks to a divisor, or parallel.data to ddp or fsdp",
            )
    return _sharded(table.data, why, _spread(table, world, peak, shards), peak)


def _sharded(data: str, why: str, spread: Spread, peak: Peak) -> Parallelism:
    weights = "whole through a step" if spread.gathered else "gathered for each pass"
    gradients = "once a step" if spread.whole_gradients else "at every row"
    memory = f"weights {weights}, gradients reduced {gradients}: {size(peak(spread))} a rank"
    return Parallelism(data=Choice(data, why), spread=spread, memory=memory)


def _spread(table: ParallelTable, world: World, peak: Peak, shards: int) -> Spread:
    """The spread that sends least among those that fit; the smallest when none does."""
    reduce_bytes = 4 if table.reduce_dtype == "float32" else 2
    first = Spread(shards=shards, by_group=True, reduce_bytes=reduce_bytes)
    found = list(_wanted(table, world, first))
    return next((s for s in found if world.room is None or peak(s) <= world.room), found[-1])


def _wanted(table: ParallelTable, world: World, first: Spread) -> Iterator[Spread]:
    """What the table allows, from the least sent to the least kept."""
    for gathered in (True, False):
        for whole in (True, False):
            if table.reshard_after_forward in ("auto", "false" if gathered else "true") and (
                table.gradient_sync in ("auto", "step" if whole else "row")
            ):
                # one row a step: its gradients are reduced once in any case
                yield replace(first, gathered=gathered, whole_gradients=whole and world.rows > 1)


def _several_hosts(world: World) -> bool:
    return 1 < world.on_a_host < world.ranks and world.ranks % world.on_a_host == 0
