from __future__ import annotations

import re

import pytest
import torch

from brim.model.config import ModelConfig
from brim.model.lora import add_lora
from brim.model.memory import RowShape
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.train.config import Config, LoraTable, ModelTable, OptimizerTable
from brim.train.fitting import Option, options, pick
from brim.train.parallel.choose import World

ROW = RowShape(tokens=12_288, vision_rows=38_000, scored=1800)
H200 = int(150e9 * 0.94)


def found(size: str, room: float | None, states: str = "", ranks: int = 1) -> list[Option]:
    with torch.device("meta"):
        model = Qwen3VL(ModelConfig.named(size)).bfloat16()
    config = Config(model=ModelTable(random=size), optimizer=OptimizerTable(states=states))
    world = World(ranks=ranks, on_a_host=ranks, rows=1, room=None if room is None else int(room))
    return options(config, model, ROW, world, together=ranks > 1)


@pytest.mark.parametrize(
    ("size", "room", "states", "reason"),
    [
        ("4B", H200, "float32", "fits without computing anything twice"),
        ("8B", H200, "bfloat16", "float32 would take .* GiB of 131.3 GiB"),
        ("8B", 80e9 * 0.94, "8bit", "bfloat16 would take"),
        ("2B", 30e9, "bfloat16", "float32 would need|float32 would take"),
        ("32B", H200, "8bit", "nothing fits: a step takes .* lower data.tokens_per_row"),
    ],
)
def test_states_with_most_bits_that_fit_are_taken_and_the_reason_says_what_others_cost(
    size: str, room: float, states: str, reason: str
) -> None:
    picked = pick(found(size, room))
    assert picked.value.states == states
    assert re.search(reason, picked.why), picked.why


def test_states_shrink_and_recompute_less_from_option_to_option() -> None:
    masters, half, eight = found("8B", 100e9)
    parameters = 8_767_123_696
    assert [o.whole.states for o in (masters, half)] == [12 * parameters, 4 * parameters]
    assert eight.whole.states == int(parameters * (2 + 8 / 256))
    blocks = [o.recompute.text_blocks + o.recompute.vision_blocks for o in (masters, half, eight)]
    assert blocks == sorted(blocks, reverse=True) and blocks[0] == 36 + 27
    assert masters.recompute.offload and not masters.fits
    assert half.fits and eight.fits and half.again


def test_no_option_recomputes_more_than_it_must() -> None:
    from brim.model.memory import estimate, recomputations

    with torch.device("meta"):
        model = Qwen3VL(ModelConfig.named("4B")).bfloat16()
    config = Config(model=ModelTable(random="4B"), optimizer=OptimizerTable(states="bfloat16"))
    for room in range(45, 100, 5):
        world = World(ranks=1, on_a_host=1, rows=1, room=room * 10**9)
        (option,) = options(config, model, ROW, world)
        fitting = [
            r
            for r in recomputations(model, Recompute())
            if estimate(model, ROW, recompute=r).total <= room * 10**9
        ]
        assert option.fits == bool(fitting)
        if fitting:
            assert option.recompute == fitting[0], room


def test_an_asked_for_kind_is_the_only_option_and_a_cpu_takes_the_most_bits() -> None:
    (only,) = found("8B", H200, "8bit")
    assert pick([only]).why == "as configured"
    picked = pick(found("8B", None))
    assert (picked.value.states, picked.why) == ("float32", "memory is no limit here")


def test_eight_ranks_share_what_one_cannot_hold() -> None:
    picked = pick(found("32B", H200, ranks=8))
    assert picked.value.parallelism.data.value == "fsdp"
    assert picked.value.fits and picked.value.states == "bfloat16"


def test_with_adapters_on_a_frozen_tower_only_text_blocks_are_recomputed_and_masters_stay() -> None:
    with torch.device("meta"):
        model = Qwen3VL(ModelConfig.named("8B")).bfloat16()
    add_lora(model, 16, 32.0)
    config = Config(model=ModelTable(random="8B"), lora=LoraTable(r=16))
    world = World(ranks=1, on_a_host=1, rows=1, room=60 * 10**9)
    picked = pick(options(config, model, ROW, world))
    assert picked.value.recompute.vision_blocks == 0 < picked.value.recompute.text_blocks
    assert picked.value.states == "float32"
    assert "fewer bits would change nothing" in picked.why
