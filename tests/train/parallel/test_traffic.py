"""What is sent in a step: from sizes, counted in a rehearsal, and counted between real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.train.parallel import tiny
from tests.train.parallel.processes import on_ranks

from brim.model.memory import RowShape
from brim.model.qwen3vl import Qwen3VL
from brim.train.adamw import AdamW
from brim.train.config import ParallelTable
from brim.train.parallel.choose import Parallelism, World, choose
from brim.train.parallel.fake import Rehearsal, rehearse
from brim.train.parallel.ranks import Ranks
from brim.train.parallel.traffic import Count, Traffic, of_step
from brim.train.parallel.wrap import wrap
from brim.train.step import TrainStep

FORMS: dict[str, dict[str, Any]] = {
    "ddp": {"data": "ddp"},
    "fsdp": {"data": "fsdp", "reshard_after_forward": "false"},
    "fsdp, gathered again": {"data": "fsdp", "reshard_after_forward": "true"},
    "fsdp, reduced every row": {"data": "fsdp", "gradient_sync": "row"},
    "hsdp": {"data": "hsdp", "shard_ranks": 2},
}
ROWS = 3


def chosen(settings: dict[str, Any], world: int, on_a_host: int) -> Parallelism:
    where = World(ranks=world, on_a_host=on_a_host, rows=ROWS, room=None)
    return choose(ParallelTable(**settings), where, lambda _: 0)


def foreseen(settings: dict[str, Any], world: int, on_a_host: int = 2) -> list[Traffic]:
    choice = chosen(settings, world, on_a_host)
    return of_step(tiny.model(), choice, world, ROWS)


def counted(ranks: Ranks, settings: dict[str, Any]) -> list[Traffic]:
    """Of the third step between real ranks, when DDP has cut its buckets."""
    model = tiny.model()
    parallel = wrap(model, ranks, ParallelTable(**settings), chosen(settings, ranks.world, 2))
    step = TrainStep(model, AdamW(model.parameters()), parallel=parallel)
    rows = [tiny.row(i + ranks.rank) for i in range(ROWS)]
    for _ in range(2):
        step(rows, 1e-3)
    with Count() as seen:
        step(rows, 1e-3)
    return seen.traffic()


def rehearsed(settings: dict[str, Any], world: int, on_a_host: int) -> Rehearsal:
    return rehearse(
        tiny.config(),
        torch.float32,
        lambda model: None,
        lambda model: AdamW(model.parameters()),
        RowShape(tokens=48, vision_rows=16, scored=8),
        chosen(settings, world, on_a_host),
        table=ParallelTable(**settings),
        world=world,
        on_a_host=on_a_host,
        rows=ROWS,
    )


@pytest.mark.parametrize("form", [name for name in FORMS if name != "hsdp"])
def test_two_ranks_send_what_sizes_say(form: str) -> None:
    expected = foreseen(FORMS[form], 2)
    for found in on_ranks(2, counted, FORMS[form]):
        assert found == expected


def test_four_ranks_of_two_hosts_send_what_sizes_say() -> None:
    expected = foreseen(FORMS["hsdp"], 4)
    assert {(t.kind, t.ranks) for t in expected} == {
        ("all-gather", 2), ("reduce-scatter", 2), ("all-reduce", 2), ("all-reduce", 4)
    }  # fmt: skip
    assert on_ranks(4, counted, FORMS["hsdp"]) == [expected] * 4


@pytest.mark.parametrize("form", FORMS)
def test_rank_0_of_64_is_rehearsed_alone_and_sends_what_sizes_say(form: str) -> None:
    seen = rehearsed(FORMS[form], 64, 8)
    assert seen.traffic == foreseen(FORMS[form], 64, 8)
    whole = sum(p.numel() * 4 for p in tiny.model().parameters())
    shards = chosen(FORMS[form], 64, 8).spread.shards
    # rows do not divide: what a shard holds is rounded up
    assert whole / shards <= seen.weights == seen.gradients <= whole / shards + 4 * 16 * 60 * 16
    assert seen.states == 2 * seen.weights


def test_gradients_of_copies_are_sent_once_a_step_whatever_its_rows() -> None:
    model, choice = tiny.model(), chosen(FORMS["ddp"], 8, 8)
    one, many = of_step(model, choice, 8, 1), of_step(model, choice, 8, 16)
    assert one == many
    always = of_step(model, choice, 8, 16, each_row=True)
    assert always[0].calls == 1 + 16 * (one[0].calls - 1)
    assert sum(t.bytes for t in one) == 80 + sum(p.numel() * 4 for p in model.parameters())


def test_weights_kept_through_a_step_are_gathered_once() -> None:
    once, twice = (foreseen(FORMS[f], 8)[0] for f in ("fsdp", "fsdp, gathered again"))
    groups = 3 + 3 + 2 + 1 + 1 + 1  # blocks of text and tower, taps, merger, tower, root
    assert once.calls == groups
    assert twice.calls == ROWS * (2 * groups - 1)  # the root stays


def test_a_frozen_tower_is_gathered_for_the_forward_pass_alone_and_never_reduced() -> None:
    model = tiny.model()
    model.visual.requires_grad_(False)
    choice = chosen(FORMS["fsdp, gathered again"], 8, 8)
    found = {t.kind: t for t in of_step(model, choice, 8, ROWS)}
    assert found["reduce-scatter"].calls == 4
    assert found["all-gather"].calls == ROWS * (7 + 2 * 3 + 1)


def test_a_ring_sends_each_byte_once_and_a_reduction_of_all_twice() -> None:
    gather = Traffic(kind="all-gather", ranks=8, calls=1, bytes=800)
    assert gather.sent == 700
    assert Traffic(kind="all-reduce", ranks=8, calls=1, bytes=800).sent == 1400


def test_a_rehearsal_leaves_no_process_group_behind() -> None:
    rehearsed(FORMS["fsdp"], 8, 8)
    assert not torch.distributed.is_initialized()
    with torch.device("meta"):
        Qwen3VL(tiny.config())  # and tensors are real again
    assert tiny.model().norm.weight.sum().item() == 16
