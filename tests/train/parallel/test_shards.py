"""The optimizer on parts of parameters: the bits of the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.train.parallel import tiny
from tests.train.parallel.processes import on_ranks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

from brim.model.lora import add_lora, lora_layers
from brim.train.adamw import AdamW, gradient_norm
from brim.train.config import ParallelTable
from brim.train.parallel.choose import World, choose
from brim.train.parallel.ranks import Ranks
from brim.train.parallel.shards import first_element, local
from brim.train.parallel.wrap import wrap
from brim.train.step import TrainStep

SHAPES = ((5, 7), (4,), (2, 3, 4), (1, 300))


def tensors(dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in SHAPES]


def updated(ranks: Ranks, dtype: torch.dtype, state: torch.dtype) -> list[torch.Tensor]:
    """The whole weights after three updates with the same gradients everywhere."""
    masters = state is torch.float32
    mesh = init_device_mesh("cpu", (ranks.world,)) if ranks.together else None

    def spread(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if mesh is None else distribute_tensor(tensor, mesh, [Shard(0)])

    weights = [torch.nn.Parameter(spread(t)) for t in tensors(dtype, 0)]
    optimizer = AdamW(weights, lr=1e-2, weight_decay=0.1, masters=masters, state_dtype=state)
    for step in range(3):
        for weight, grad in zip(weights, tensors(dtype, 1 + step), strict=True):
            weight.grad = spread(grad)
        optimizer.prepare(torch.ones(()), 0.5, torch.ones(()))
        optimizer.step()
    return [
        w.detach().full_tensor() if isinstance(w.data, DTensor) else w.detach() for w in weights
    ]


@pytest.mark.parametrize(
    ("dtype", "state"),
    [
        (torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32),
        (torch.bfloat16, torch.uint8),
    ],
    ids=["stochastic rounding", "masters", "8 bits"],
)
def test_shards_on_three_ranks_are_rounded_as_the_whole_is(
    dtype: torch.dtype, state: torch.dtype
) -> None:
    expected = updated(Ranks(), dtype, state)
    for found in on_ranks(3, updated, dtype, state):
        for ours, whole in zip(found, expected, strict=True):
            assert torch.equal(ours, whole)


def places(ranks: Ranks) -> list[tuple[int, int]]:
    found = []
    flat = init_device_mesh("cpu", (4,))
    grid = init_device_mesh("cpu", (2, 2))
    for mesh, how in ((flat, [Shard(0)]), (grid, [Replicate(), Shard(0)])):
        for rows in (8, 5, 2):
            tensor = distribute_tensor(torch.arange(rows * 3.0).view(rows, 3), mesh, how)
            found.append((first_element(tensor), local(tensor).numel()))
            if local(tensor).numel():
                assert local(tensor).flatten()[0] == first_element(tensor)
    return found


def test_every_part_knows_where_it_begins() -> None:
    found = on_ranks(4, places)
    assert [rank[0] for rank in found] == [(0, 6), (6, 6), (12, 6), (18, 6)]
    assert [rank[1] for rank in found] == [(0, 6), (6, 6), (12, 3), (15, 0)]
    assert [rank[2] for rank in found] == [(0, 3), (3, 3), (6, 0), (6, 0)]
    assert [rank[3] for rank in found] == [(0, 12), (12, 12)] * 2


def norm_of_part(ranks: Ranks) -> float:
    mesh = init_device_mesh("cpu", (ranks.world,))
    weight = torch.nn.Parameter(distribute_tensor(torch.zeros(3, 2), mesh, [Shard(0)]))
    weight.grad = distribute_tensor(torch.tensor([[3.0, 4], [0, 0], [5, 12]]), mesh, [Shard(0)])
    return gradient_norm([weight]).item()


def test_a_norm_over_shards_is_that_of_the_part() -> None:
    assert on_ranks(3, norm_of_part) == [5.0, 0.0, 13.0]


def adapted(ranks: Ranks, settings: dict[str, Any]) -> tuple[list[float], list[torch.Tensor]]:
    """Losses and adapters of three steps."""
    model = tiny.model()
    add_lora(model, 2, 4.0)
    table = ParallelTable(**settings)
    world = World(ranks=ranks.world, on_a_host=1, rows=8 // ranks.world, room=None)
    parallel = wrap(model, ranks, table, choose(table, world, lambda _: 0))
    learnt = [p for p in model.parameters() if p.requires_grad]
    step = TrainStep(model, AdamW(learnt, lr=1e-2, eps=1e-3), parallel=parallel)
    losses = [
        step(tiny.share(tiny.batch(n), ranks.rank, ranks.world), 1e-2).loss.item() for n in range(3)
    ]
    with parallel.whole():
        return losses, [layer.lora_b.detach().clone() for layer in lora_layers(model)]


@pytest.mark.parametrize("data", ["ddp", "fsdp"])
def test_adapters_learn_on_two_ranks_what_they_learn_on_one(data: str) -> None:
    losses, expected = adapted(Ranks(), {})
    for found, adapters in on_ranks(2, adapted, {"data": data}):
        assert found == pytest.approx(losses, rel=1e-6)
        for ours, theirs in zip(adapters, expected, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7)
