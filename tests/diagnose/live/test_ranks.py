"""Who waits for whom."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.live.records import MAIN, TRAIN, process, stack

from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import Evidence, gather
from brim.diagnose.live.ranks import clues, waits
from brim.diagnose.live.window import choose
from brim.record.steps import Footer, Step

WALL = 0.1


def _rank(rank: int, work: list[float], footer: Footer | None = None, **fields: Any) -> Evidence:
    """A rank that works that long in each step of 0.1 s and waits in backward for the rest."""
    base: dict[str, Any] = {"backward": 0.08, "backward_n": 1, "run_delay": 0.0}
    lines = [
        Step(n=n, t=WALL * (n + 1), wall=WALL, clock="opt0", cpu=seconds, **(base | fields))
        for n, seconds in enumerate(work)
    ]
    found = process(lines, rank=rank, footer=footer, world=2)
    return gather(found, choose(found, warmup=0))


def _causes(*ranks: Evidence) -> set[str]:
    """What most of the waiting is due to."""
    seconds: dict[str, float] = {}
    for clue in (c for of in clues(ranks) for c in of):
        seconds[clue.cause] = seconds.get(clue.cause, 0.0) + clue.seconds
    return {max(seconds, key=seconds.__getitem__)} if seconds else set()


def test_one_rank_waits_for_nobody() -> None:
    assert clues([_rank(0, [0.05] * 20)]) == [[]]


def test_the_wait_is_what_is_neither_on_a_core_nor_for_one_nor_for_the_loader() -> None:
    found = waits(
        [
            _rank(0, [0.04] * 10, run_delay=0.01, input_wait=0.02, input_cpu=0.0),
            _rank(1, [0.1] * 10),
        ]
    )
    assert found.wait[0] == pytest.approx([0.03] * 10)
    assert found.wait[1] == pytest.approx([0.0] * 10)
    assert found.share(0) == pytest.approx(0.3)


def test_a_rank_that_sleeps_outside_backward_waits_for_nobody() -> None:
    """A slow device: 50 ms of 100 without a core, while backward computes all the time."""
    slow = _rank(1, [0.05] * 10, backward=0.03, backward_cpu=0.03)
    found = waits([_rank(0, [0.05] * 10, backward_cpu=0.03), slow])
    assert found.wait[0] == pytest.approx([0.05] * 10)
    assert found.wait[1] == pytest.approx([0.0] * 10)
    assert _causes(_rank(0, [0.05] * 10, backward_cpu=0.03), slow) == {"comm.straggler-device"}


def test_a_late_rank_that_changes_is_the_datas_fault() -> None:
    long_short = [0.09, 0.05] * 10
    assert _causes(_rank(0, long_short), _rank(1, long_short[::-1])) == {"comm.straggler-data"}


def test_always_the_same_late_rank_at_equal_work_is_a_slow_device() -> None:
    slow = _rank(0, [0.05] * 20, tokens=100)
    # it is late, and its thread is on its core no longer than the other's
    late = _rank(1, [0.05] * 20, tokens=100, backward=0.0)
    assert _causes(slow, late) == {"comm.straggler-device"}


def test_always_the_same_late_rank_with_more_tokens_is_the_datas_fault() -> None:
    few = _rank(0, [0.05] * 20, tokens=100)
    many = _rank(1, [0.05] * 20, tokens=180, backward=0.0)
    assert _causes(few, many) == {"comm.straggler-data"}


DDP = Footer(ddp=[{"parameters": 10, "bytes": 40 << 20, "buckets": 2}])


@pytest.mark.parametrize(
    ("footer", "fields", "cause"),
    [
        (DDP, {"synced_backwards": 1}, "comm.exposed"),
        (DDP, {"synced_backwards": 4, "backward_n": 4}, "comm.too-many"),  # no no_sync
        (DDP, {"synced_backwards": 1, "backward_n": 4}, "comm.exposed"),  # no_sync as it should be
        (Footer(ddp=[{"bytes": 40 << 20, "buckets": 400}]), {"synced_backwards": 1},
         "comm.too-many"),
        (Footer(ddp=[{"bytes": 1 << 18, "buckets": 5}]), {"synced_backwards": 1}, "comm.exposed"),
        (Footer(), {"comm_n": 100}, "comm.too-many"),
        (Footer(), {"comm_n": 1}, "comm.exposed"),
        (None, {"comm_n": 1}, "comm.exposed"),  # killed: no footer
    ],
)  # fmt: skip
def test_ranks_that_arrive_together_pay_for_too_many_collectives_or_for_slow_ones(
    footer: Footer | None, fields: dict[str, Any], cause: str
) -> None:
    ranks = [_rank(r, [0.06] * 20, footer, **fields) for r in range(2)]
    assert _causes(*ranks) == {cause}


def test_each_rank_gets_its_own_wait() -> None:
    found = clues([_rank(0, [0.06] * 20), _rank(1, [0.1] * 20)])
    assert found[0][0].seconds == pytest.approx(0.04 * 20)
    assert "rank 0 waited 800 ms" in found[0][0].evidence[0]
    assert found[1] == []


def test_what_the_last_rank_waits_too_is_not_the_last_ranks_fault() -> None:
    early, late = clues([_rank(0, [0.03] * 20), _rank(1, [0.06] * 20)])
    by_cause = {c.cause: c.seconds for c in early}
    assert by_cause["comm.exposed"] == pytest.approx(0.04 * 20)
    assert by_cause["comm.straggler-data"] == pytest.approx(0.03 * 20)
    assert {c.cause for c in late} == {"comm.exposed"}


def test_ranks_are_matched_from_the_end_and_a_rank_without_steps_harms_nothing() -> None:
    found = waits([_rank(0, [0.02] * 5 + [0.06] * 10), _rank(1, [0.06] * 10)])
    assert found.work[0] == pytest.approx([0.06] * 10)
    assert clues([_rank(0, [0.06] * 10), _rank(1, [])]) == [[], []]


# ------------------------------------------------------------------- what the late rank does

SHARD = Clue(cause="input.storage", seconds=1.0, evidence=("its disk",), report_from=0.1)
SAVES = Clue(cause="host.periodic", seconds=0.5, evidence=("it saves",), after=0.0)


def _found(ranks: list[Evidence], own: list[list[Clue]]) -> list[dict[str, Clue]]:
    return [{c.cause: c for c in of} for of in clues(ranks, own)]


def test_waiting_for_a_rank_that_waits_for_its_disk_is_its_disks_fault() -> None:
    late = _rank(1, [0.04] * 20, input_wait=0.06, backward=0.0)
    early, _ = _found([_rank(0, [0.04] * 20), late], [[], [SHARD]])
    assert set(early) == {"input.storage"}
    assert early["input.storage"].seconds == pytest.approx(0.06 * 20)
    assert early["input.storage"].report_from == 0.1
    assert early["input.storage"].for_other
    assert "for rank 1, which waited for its batch" in early["input.storage"].evidence[0]


def test_a_rank_that_saves_now_and_then_holds_up_the_others_for_as_long() -> None:
    writer, other = _rank(0, [0.1] * 20), _rank(1, [0.1] * 20)
    for position in (4, 9, 14, 19):
        writer.chosen.steps[position].save = 0.06
        other.chosen.steps[position].cpu = 0.04
    writer, other = (gather(e.process, e.chosen) for e in (writer, other))
    _, held_up = _found([writer, other], [[SAVES], []])
    assert held_up["host.periodic"].seconds == pytest.approx(4 * 0.06)
    assert held_up["host.periodic"].after == 0.0


def test_collections_that_hit_the_ranks_in_turn_are_seen_step_by_step() -> None:
    collects = Clue(cause="host.gc", seconds=0.6, evidence=("gc",))
    ranks = [_rank(0, [0.04, 0.1] * 10), _rank(1, [0.1, 0.04] * 10)]
    for rank in ranks:
        for step in rank.chosen.steps:
            step.gc = 0.06 if step.cpu == 0.1 else 0.0
    for of in _found(ranks, [[collects], [collects]]):
        assert set(of) == {"host.gc"}
        assert of["host.gc"].seconds == pytest.approx(0.6)


def test_what_both_ranks_do_alike_explains_no_waiting() -> None:
    early = _rank(0, [0.05] * 20, input_wait=0.02, input_cpu=0.02)
    late = _rank(1, [0.1] * 20, input_wait=0.02, input_cpu=0.02)
    found, _ = _found([early, late], [[SHARD], [SHARD]])
    assert set(found) == {"comm.straggler-data"}


def test_the_part_that_a_chore_does_not_explain_stays_with_the_straggler() -> None:
    late = _rank(1, [0.07] * 20, input_wait=0.03, backward=0.0)
    early, _ = _found([_rank(0, [0.04] * 20), late], [[], [SHARD]])
    assert early["input.storage"].seconds == pytest.approx(0.03 * 20)
    assert early["comm.straggler-data"].seconds == pytest.approx(0.03 * 20)


def test_without_a_rule_that_names_the_chore_the_late_rank_is_a_straggler() -> None:
    late = _rank(1, [0.04] * 20, input_wait=0.06, backward=0.0)
    early, _ = _found([_rank(0, [0.04] * 20), late], [[], []])
    assert set(early) == {"comm.straggler-device"}


def test_sampled_chores_are_compared_over_the_window() -> None:
    late = _rank(1, [0.1] * 20, samples={"9": (1, 0.06, 0.06, 0.0)})
    late.process.stacks["9"] = stack("9", (TRAIN, "write_histograms", 30, "x"), MAIN)
    late = gather(late.process, late.chosen)
    early, _ = _found([_rank(0, [0.04] * 20), late], [[], [SAVES]])
    assert early["host.periodic"].seconds == pytest.approx(0.06 * 20)
