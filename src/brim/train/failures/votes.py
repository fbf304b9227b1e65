"""What ranks tell each other after each step, at no cost to it.

One all-reduce of a few integers between the hosts (gloo) runs while the next step does, and its
result is used after that: no device takes part in it or waits for it.  All ranks hear the same
after the same step, so what follows from it (stop, a checkpoint is complete) happens on all of them
at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from brim.train.checkpoint import Saved
from brim.train.parallel.ranks import Ranks

_MICRO = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    """One rank's word; heard, it is that of all."""

    stop: int = 0
    """Number of the signal that asks to stop; the largest is heard."""
    saved: Saved = field(default_factory=Saved)
    """``written``: the least is heard, the others as the largest."""
    recomputed: tuple[int, int] = (0, 0)
    """Text and vision blocks whose activations are recomputed; the largest are heard."""
    busy: tuple[float, ...] = (0.0,)
    """Seconds from the end of the last step until the rank was ready to meet the others; heard,
    one number for each rank."""
    waited: tuple[float, ...] = (0.0,)
    """Of ``busy``: waiting for rows."""


class Votes:
    """Casts one vote a step; :meth:`cast` returns what was heard of the step before."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._flying: tuple[Any, torch.Tensor] | None = None

    def cast(self, vote: Vote) -> Vote | None:
        """Tell the others.  None after the first step; alone, a rank hears itself at once."""
        if self.ranks.world == 1:
            return vote
        before = self.heard()
        numbers = torch.tensor(_encode(vote, self.ranks), dtype=torch.int64)
        work = dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.ranks.host, async_op=True)
        self._flying = work, numbers
        return before

    def heard(self) -> Vote | None:
        """Wait for the last vote; every rank must have cast it."""
        flying, self._flying = self._flying, None
        if flying is None:
            return None
        work, numbers = flying
        work.wait()
        return _decode(numbers.tolist())


def _encode(vote: Vote, ranks: Ranks) -> list[int]:
    """The largest of each is what is heard."""
    seconds = [0] * (2 * ranks.world)
    seconds[ranks.rank] = int(vote.busy[0] * _MICRO)
    seconds[ranks.world + ranks.rank] = int(vote.waited[0] * _MICRO)
    saved = vote.saved
    return [vote.stop, -saved.written, saved.failed, saved.committed, *vote.recomputed, *seconds]


def _decode(numbers: Sequence[int]) -> Vote:
    stop, written, failed, committed, text, vision, *micro = numbers
    seconds = [m / _MICRO for m in micro]
    world = len(seconds) // 2
    return Vote(
        stop=stop,
        saved=Saved(-written, failed, committed),
        recomputed=(text, vision),
        busy=tuple(seconds[:world]),
        waited=tuple(seconds[world:]),
    )
