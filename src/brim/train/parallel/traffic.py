"""What the ranks send each other in a step: from sizes, and counted as torch sends it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from brim.model.qwen3vl import Qwen3VL
from brim.train.parallel.choose import Parallelism
from brim.train.parallel.memory import groups, owners

_KINDS = {
    "_allgather_base_": "all-gather",
    "allgather_into_tensor_coalesced_": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor_coalesced_": "reduce-scatter",
    "allreduce_": "all-reduce",
    "broadcast_": "broadcast",
}
SUMS = 10 * 8
"""Bytes of the loss, the squared norm and the counts, summed once a step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Traffic:
    """Collectives of one kind in one group, per optimizer step and rank."""

    kind: str
    ranks: int
    """In the group."""
    calls: int
    bytes: int
    """Of the whole buffers: what a gather gives, what a reduction takes."""

    @property
    def sent(self) -> float:
        """Bytes that a rank sends in a ring: S (n - 1) / n, twice that for an all-reduce."""
        passes = 2 if self.kind == "all-reduce" else 1
        return passes * self.bytes * (self.ranks - 1) / self.ranks


def merged(found: Sequence[Traffic]) -> list[Traffic]:
    """One line for each kind and group size, in that order."""
    keys = sorted({(t.kind, t.ranks) for t in found})
    return [
        Traffic(
            kind=kind,
            ranks=ranks,
            calls=sum(t.calls for t in found if (t.kind, t.ranks) == (kind, ranks)),
            bytes=sum(t.bytes for t in found if (t.kind, t.ranks) == (kind, ranks)),
        )
        for kind, ranks in keys
    ]


class Count(TorchDispatchMode):
    """While entered, counts the collectives that torch dispatches in this thread.

    ::

        with Count() as seen:
            step(rows, lr)
        seen.traffic()
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Traffic] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "c10d":
            self._note(func._schema.name.rpartition("::")[2], args)
        return func(*args, **(kwargs or {}))

    def traffic(self) -> list[Traffic]:
        return merged(self.calls)

    def _note(self, name: str, args: Any) -> None:
        kind = _KINDS.get(name)
        if kind is None:
            return
        group = next(g for g in args if isinstance(g, torch.ScriptObject))
        # the first argument is the gathered output; a scattered reduction's input is the second
        whole = args[1] if kind == "reduce-scatter" else args[0]
        tensors = [whole] if isinstance(whole, torch.Tensor) else list(whole)
        self.calls.append(
            Traffic(
                kind=kind,
                ranks=dist.ProcessGroup.unbox(group).size(),
                calls=1,
                bytes=sum(t.numel() * t.element_size() for t in tensors),
            )
        )


def of_step(
    model: Qwen3VL,
    choice: Parallelism,
    world: int,
    rows: int,
    *,
    bucket_mb: int = 25,
    each_row: bool = False,
) -> list[Traffic]:
    """From sizes alone; ``model`` before it is wrapped, its tower in use in every row.

    ``each_row``: copies reduce their gradients after every row.
    """
    found = [Traffic(kind="all-reduce", ranks=world, calls=1, bytes=SUMS)]
    if choice.data.value == "ddp":
        sizes = buckets(model, bucket_mb)
        times = rows if each_row else 1
        found.append(
            Traffic(
                kind="all-reduce", ranks=world, calls=times * len(sizes), bytes=times * sum(sizes)
            )
        )
    elif choice.sharded:
        found += _shards(model, choice, world, rows)
    return merged(found if world > 1 else [])


def buckets(model: Qwen3VL, cap_mb: int) -> list[int]:
    """Bytes of DDP's buckets in the order in which they leave, cut by torch's own rule.

    DDP cuts them anew after the first step, by the order in which gradients arrived; that moves
    borders, hardly their number.
    """
    learnt = [p for p in model.parameters() if p.requires_grad][::-1]
    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, cap_mb << 20]
    cut, _ = dist._compute_bucket_assignment_by_size(learnt, limits, [False] * len(learnt))
    return [sum(learnt[i].numel() * learnt[i].element_size() for i in bucket) for bucket in cut]


def _shards(model: Qwen3VL, choice: Parallelism, world: int, rows: int) -> Iterator[Traffic]:
    spread = choice.spread
    gathered, reduced = _padded(model, spread.shards)
    times = rows if not spread.whole_gradients else 1
    behind = _before_gradients(model)
    for name, size in gathered.items():
        # the root keeps its weights from the forward to the backward pass of a row
        again = bool(name) and name not in behind
        passes = 1 if spread.gathered else rows * (2 if again else 1)
        yield Traffic(kind="all-gather", ranks=spread.shards, calls=passes, bytes=passes * size)
        summed = reduced[name] * spread.reduce_bytes
        if not summed:
            continue
        yield Traffic(kind="reduce-scatter", ranks=spread.shards, calls=times, bytes=times * summed)
        if world > spread.shards:
            shard = times * summed // spread.shards
            yield Traffic(kind="all-reduce", ranks=world // spread.shards, calls=times, bytes=shard)


def _padded(model: Qwen3VL, shards: int) -> tuple[dict[str, int], dict[str, int]]:
    """Of each group: bytes that are gathered, and elements that are reduced; rows are padded to a
    multiple of the shards."""
    gathered = dict.fromkeys(groups(model), 0)
    reduced = dict(gathered)
    owner = owners(model)
    for name, parameter in model.named_parameters():
        elements = -(-parameter.shape[0] // shards) * shards * prod(parameter.shape[1:])
        gathered[owner[name]] += elements * parameter.element_size()
        reduced[owner[name]] += elements * parameter.requires_grad
    return gathered, reduced


def _before_gradients(model: Qwen3VL) -> set[str]:
    """Groups that have no backward pass: nothing in them or before them learns."""
    owner = owners(model)
    learnt = {owner[name] for name, p in model.named_parameters() if p.requires_grad}
    order = list(groups(model))
    tower = [name for name in order if name.startswith("visual")]
    text = [name for name in order if name.startswith("blocks.")]
    if learnt & set(tower):
        return set()  # mergers learn behind the blocks, but torch gathers by what needs gradients
    if model.embedding.weight.requires_grad:
        return set(tower)
    first = next((i for i, name in enumerate(text) if name in learnt), len(text))
    return {*tower, *text[:first]}
