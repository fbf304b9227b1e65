"""A step's time from what computes and what carries."""

from __future__ import annotations

import pytest

from brim.hardware.gpus import table
from brim.train.parallel.forecast import (
    LATENCY_S,
    LINK_ATTAINED,
    Cluster,
    Work,
    replicated,
    sharded,
)

H200 = Cluster(inside=450e9, between=50e9, on_a_host=8)


def test_without_a_word_to_send_a_step_is_its_computing() -> None:
    found = sharded([Work(forward=1.0, backward=2.0)] * 4, rows=3, update=5.0)
    assert found.compute == found.step == 3 * 4 * 3 + 5
    assert found.exposed == 0 and found.overlapped == 1


def test_only_the_first_gather_is_seen_when_computing_is_slower() -> None:
    work = [Work(forward=1.0, backward=2.0, gather=0.25, kept=True)] * 4
    found = sharded(work, rows=1)
    assert found.communicating == 1.0
    assert found.exposed == pytest.approx(0.25)
    assert found.overlapped == 0.75


def test_a_link_that_is_slower_than_the_device_sets_the_pace() -> None:
    work = [Work(forward=1.0, backward=1.0, gather=3.0, kept=True)] * 4
    found = sharded(work, rows=1)
    # four gathers one after the other, the last block behind them, then the backward pass
    assert found.step == 4 * 3 + 1 + 4
    assert found.exposed == found.step - found.compute


def test_without_gathering_ahead_every_gather_is_seen() -> None:
    work = [Work(forward=1.0, backward=2.0, gather=0.25, kept=True)] * 4
    assert sharded(work, rows=1, ahead=0).exposed == pytest.approx(1.0)


def test_the_last_reduction_is_seen_and_those_before_hide() -> None:
    work = [Work(forward=1.0, backward=2.0, reduce=0.5)] * 4
    assert sharded(work, rows=1).exposed == pytest.approx(0.5)


def test_reducing_at_every_row_sends_as_often() -> None:
    work = [Work(forward=1.0, backward=2.0, reduce=0.5)] * 4
    once, always = (sharded(work, rows=6, once=o) for o in (True, False))
    assert once.communicating == 2.0
    assert always.communicating == 12.0


def test_weights_gathered_again_are_carried_twice_a_row() -> None:
    kept, again = (
        sharded([Work(forward=1.0, backward=1.0, gather=0.1, kept=k)] * 4, rows=2).communicating
        for k in (True, False)
    )
    assert again == pytest.approx(2 * kept) == pytest.approx(1.6)


def test_weights_that_stay_are_carried_once_a_step() -> None:
    work = [Work(forward=1.0, backward=1.0, gather=0.1, kept=True)] * 4
    assert sharded(work, rows=5, held=True).communicating == pytest.approx(0.4)
    assert sharded(work, rows=5).communicating == pytest.approx(2.0)


def test_buckets_of_copies_leave_while_the_last_backward_pass_fills_them() -> None:
    work = [Work(forward=1.0, backward=2.0)] * 5
    quick = replicated(work, rows=2, buckets=[(0.5, 1.0), (1.0, 0.25)])
    assert quick.exposed == pytest.approx(0.25)
    slow = replicated(work, rows=2, buckets=[(0.5, 8.0), (1.0, 8.0)])
    assert slow.exposed == pytest.approx(16 - 5)  # they start in the middle of the pass of 10
    assert slow.step == pytest.approx(30 + 11)


def test_a_collective_inside_a_host_takes_its_ring_over_nvlink() -> None:
    size = 36e9
    gather = H200.seconds("all-gather", 8, size)
    assert gather == pytest.approx(LATENCY_S + size * 7 / 8 / 450e9 / LINK_ATTAINED)
    both = H200.seconds("all-reduce", 8, size)
    assert both - LATENCY_S == pytest.approx(2 * (gather - LATENCY_S))
    assert H200.seconds("all-gather", 1, size) == 0


def test_between_hosts_the_network_of_all_devices_of_a_host_carries() -> None:
    size = 36e9
    over_64 = H200.seconds("all-gather", 64, size)
    assert over_64 == pytest.approx(LATENCY_S + size * 7 / 8 / (8 * 50e9) / LINK_ATTAINED)
    # one rank on each of 8 hosts has one port
    assert H200.seconds("all-reduce", 8, size, spread_out=True) == pytest.approx(
        LATENCY_S + 2 * size * 7 / 8 / 50e9 / LINK_ATTAINED
    )


def test_links_come_from_the_table_of_gpus() -> None:
    gpus = {gpu.name: gpu for gpu in table()}
    assert Cluster.of_gpu(gpus["H200 SXM 141GB"]).inside == 450e9
    no_nvlink = next(g for g in table() if not g.nvlink_gb_s_bidir and g.pcie_gen == 4)
    assert Cluster.of_gpu(no_nvlink).inside == pytest.approx(31.5e9, rel=0.01)
