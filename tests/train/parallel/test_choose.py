"""Which parallelism fits, and the reason that is given for it."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from brim.errors import ConfigError
from brim.model.config import ModelConfig
from brim.model.memory import RowShape, estimate
from brim.model.qwen3vl import Qwen3VL
from brim.train.config import ParallelTable
from brim.train.parallel.choose import World, choose
from brim.train.parallel.memory import Spread, group_sizes, on_a_rank

GIB = 2**30
H200 = int(0.94 * 139.8 * GIB)
A100_40 = int(0.94 * 39.4 * GIB)
ROW = RowShape(tokens=12_288, vision_rows=32_768, scored=2_000)
AUTO = ParallelTable()
EIGHT = World(ranks=8, on_a_host=8, rows=2, room=H200)


def model_of(name: str) -> Qwen3VL:
    with torch.device("meta"):
        return Qwen3VL(ModelConfig.named(name)).bfloat16()


MODELS = {name: model_of(name) for name in ("4B", "8B", "32B")}


def peak(name: str, states: int = 12):  # type: ignore[no-untyped-def]
    model = MODELS[name]
    whole = estimate(model, ROW, state_bytes=states)
    return lambda spread: on_a_rank(model, whole, spread).total


def test_a_4b_with_masters_is_copied_on_eight_h200() -> None:
    choice = choose(AUTO, EIGHT, peak("4B"))
    assert choice.data.value == "ddp"
    assert choice.data.why.startswith("a copy on every rank takes 1")
    assert not choice.sharded


def test_an_8b_with_masters_is_sharded_and_keeps_what_fits() -> None:
    choice = choose(AUTO, EIGHT, peak("8B"))
    assert choice.data.value == "fsdp"
    assert "a copy on every rank would take 1" in choice.data.why
    assert choice.spread == Spread(shards=8, by_group=True, gathered=True, whole_gradients=True)
    assert choice.memory.startswith("weights whole through a step, gradients reduced once a step")


def test_less_memory_keeps_less_and_sends_more() -> None:
    found = [
        choose(AUTO, replace(EIGHT, room=room * GIB), peak("8B")).spread
        for room in (140, 115, 98, 85, 70, 10)
    ]
    kept = [(s.gathered, s.whole_gradients) for s in found]
    order = [(True, True), (True, False), (False, False)]
    assert [order.index(k) for k in kept] == sorted(order.index(k) for k in kept)
    assert kept[0] == order[0] and kept[-1] == order[-1]
    assert len(set(kept)) == 3


def test_on_several_hosts_the_ranks_of_one_share_a_copy_when_it_fits_there() -> None:
    hosts = World(ranks=64, on_a_host=8, rows=1, room=H200)
    assert choose(AUTO, hosts, peak("8B")).data.value == "hsdp"
    assert choose(AUTO, hosts, peak("8B")).spread.shards == 8
    small = choose(AUTO, replace(hosts, room=A100_40), peak("32B", states=4))
    assert small.data.value == "fsdp"
    assert small.spread.shards == 64


def test_one_row_a_step_needs_no_whole_gradients() -> None:
    choice = choose(ParallelTable(data="fsdp"), replace(EIGHT, rows=1), peak("8B"))
    assert not choice.spread.whole_gradients


def test_what_is_asked_for_is_done() -> None:
    table = ParallelTable(
        data="fsdp", reshard_after_forward="true", gradient_sync="row", reduce_dtype="bfloat16"
    )
    choice = choose(table, EIGHT, peak("4B"))
    assert choice.data.why == "as configured"
    assert choice.spread == Spread(shards=8, by_group=True, reduce_bytes=2)


@pytest.mark.parametrize("shards", [3, 8, 1])
def test_hsdp_wants_several_groups_of_several_ranks(shards: int) -> None:
    with pytest.raises(ConfigError, match=f"8 ranks do not make several groups of {shards}"):
        choose(ParallelTable(data="hsdp", shard_ranks=shards), EIGHT, peak("4B"))


def test_one_rank_needs_no_parallelism_and_a_cpu_no_sharding() -> None:
    assert choose(AUTO, replace(EIGHT, ranks=1), peak("8B")).data.value == "alone"
    assert choose(AUTO, replace(EIGHT, room=None), peak("8B")).data.value == "ddp"


def test_groups_hold_every_parameter_once() -> None:
    for model in MODELS.values():
        sizes = group_sizes(model)
        assert sum(sizes.values()) == sum(p.numel() * 2 for p in model.parameters())
        text = model.config.text
        layers = {n: s for n, s in sizes.items() if n.startswith("blocks.")}
        assert len(layers) == text.layers and len(set(layers.values())) == 1


def test_a_shard_of_an_8b_holds_an_eighth_and_the_group_at_work() -> None:
    model = MODELS["8B"]
    whole = estimate(model, ROW, state_bytes=12)
    rank = on_a_rank(model, whole, Spread(shards=8, by_group=True))
    for part in ("weights", "gradients", "states"):
        assert getattr(rank, part) == pytest.approx(getattr(whole, part) / 8, rel=1e-6)
    sizes = group_sizes(model)
    block = sizes["blocks.0"]
    assert rank.gathered == sizes[""] + 2 * block
    copies = on_a_rank(model, whole, Spread())
    assert copies.total == whole.total


def test_sharding_on_one_rank_takes_more_than_not_sharding() -> None:
    one = World(ranks=1, on_a_host=1, rows=4, room=H200)
    choice = choose(ParallelTable(data="fsdp"), one, peak("4B", states=4))
    assert choice.spread == Spread(shards=1, by_group=True, gathered=True, whole_gradients=True)
    weights = sum(group_sizes(MODELS["4B"]).values())
    more = peak("4B", states=4)(choice.spread) - peak("4B", states=4)(Spread())
    assert more == 3 * weights  # whole weights, and whole gradients in float32
