"""Several ranks compute what one rank computes on the same rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.train.parallel import tiny
from tests.train.parallel.processes import on_ranks

from brim.model.qwen3vl import Recompute
from brim.train.adamw import AdamW
from brim.train.arithmetic import CLIP
from brim.train.config import ParallelTable
from brim.train.parallel.choose import World, choose
from brim.train.parallel.ranks import Ranks
from brim.train.parallel.wrap import wrap
from brim.train.step import TrainStep


def keep_gradient(
    weight: torch.Tensor, _master: Any, grad: torch.Tensor, _mean: Any, _square: Any,
    control: torch.Tensor, _rule: Any,
) -> None:  # fmt: skip
    """An "update" after which the weight is its own true gradient."""
    weight.copy_(grad * control[CLIP])


def stepped(
    ranks: Ranks,
    settings: dict[str, Any],
    steps: int,
    gradients: bool,
    tied: bool = True,
    recompute: Recompute | None = None,
) -> tuple[list[list[float]], dict[str, torch.Tensor]]:
    """(loss, norm, counts summed over ranks) of each step, and the whole weights at the end."""
    model = tiny.model(tied=tied)
    model.recompute = recompute or Recompute()
    rows = 8 // ranks.world
    table = ParallelTable(**settings)
    world = World(ranks=ranks.world, on_a_host=table.shard_ranks, rows=rows, room=None)
    parallel = wrap(model, ranks, table, choose(table, world, lambda _: 0))
    optimizer = AdamW(
        model.parameters(), lr=1e-3, eps=1e-3, update=keep_gradient if gradients else None
    )
    step = TrainStep(model, optimizer, max_norm=0.0 if gradients else 0.5, parallel=parallel)
    seen = []
    for number in range(steps):
        own = tiny.share(
            tiny.batch(number), ranks.rank, ranks.world, always=table.gradient_sync == "row"
        )
        outcome = step(own, 1e-3)
        totals = [] if outcome.totals is None else outcome.totals.tolist()
        seen.append([outcome.loss.item(), outcome.norm.item(), *totals])
    whole = {
        name: p.detach().full_tensor() if hasattr(p, "full_tensor") else p.detach()
        for name, p in model.named_parameters()
    }
    return seen, {name: tensor.clone() for name, tensor in whole.items()}


FORMS: dict[str, dict[str, Any]] = {
    "ddp": {"data": "ddp"},
    "ddp that reduces every row": {"data": "ddp", "gradient_sync": "row"},
    "ddp without a static graph": {"data": "ddp", "ddp_static_graph": False},
    "fsdp": {"data": "fsdp"},
    "fsdp that gathers again": {"data": "fsdp", "reshard_after_forward": "true", "prefetch": 2},
    "fsdp that reduces every row": {"data": "fsdp", "gradient_sync": "row", "prefetch": 0},
}


def close(a: float, b: float) -> bool:
    return abs(a - b) <= 1e-6 * abs(b)


def difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The norm of the difference over the norm, of all tensors as one."""
    total = sum(float((a[n].double() - b[n].double()).square().sum()) for n in b)
    whole = sum(float(b[n].double().square().sum()) for n in b)
    return float((total / whole) ** 0.5)


def largest_difference(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """The same of the tensor that differs most."""
    return max(difference({n: a[n]}, {n: b[n]}) for n in b)


@pytest.fixture(scope="module")
def alone() -> Any:
    """Gradients of one step on one rank, and three real steps."""
    torch.set_num_threads(1)
    return stepped(Ranks(), {}, 1, True), stepped(Ranks(), {}, 3, False)


@pytest.mark.parametrize("form", FORMS)
def test_two_ranks_have_the_loss_and_the_gradients_of_one(form: str, alone: Any) -> None:
    (single, gradients), _ = alone
    results = on_ranks(2, stepped, FORMS[form], 1, True)
    for seen, found in results:
        assert close(seen[0][0], single[0][0]) and close(seen[0][1], single[0][1])
        assert difference(found, gradients) < 5e-7
        assert largest_difference(found, gradients) < 3e-6  # the rounding of its own small sums


@pytest.mark.parametrize(
    "settings",
    [{"data": "ddp"}, {"data": "fsdp"}, {"data": "hsdp", "shard_ranks": 2}],
    ids=["ddp", "fsdp", "hsdp"],
)
def test_four_ranks_train_as_one_rank_does(settings: dict[str, Any], alone: Any) -> None:
    _, (single, weights) = alone
    results = on_ranks(4, stepped, settings, 3, False)
    for seen, found in results:
        assert seen == results[0][0]  # every rank knows the same loss, norm and counts, to the bit
        assert all(close(a[0], b[0]) for a, b in zip(seen, single, strict=True))
        assert largest_difference(found, weights) < 1e-5
    rows = tiny.batch(0)
    assert results[0][0][0][2:5] == [
        sum(getattr(r.counts, n) for r in rows) for n in ("tokens", "scored", "patches")
    ]


@pytest.mark.parametrize("form", ["ddp", "fsdp", "fsdp that gathers again"])
def test_recomputed_blocks_and_a_head_of_its_own_change_nothing(form: str) -> None:
    _, gradients = stepped(Ranks(), {}, 1, True, False)
    again = Recompute(text_blocks=2, vision_blocks=3)
    for _, found in on_ranks(2, stepped, FORMS[form], 1, True, False, again):
        assert "head.weight" in found
        assert difference(found, gradients) < 5e-7
