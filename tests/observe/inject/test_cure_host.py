"""Flushes, debug modes, the garbage collector, the optimizer, the cores."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.observe.inject.cured import Plan, RunCured, job

from _brim_hooks import cure_affinity, cure_environment, cure_flush, cure_optimizer  # isort: skip

FLUSHES = """
    import gc
    from torch.cuda import memory  # empty_cache() asks it first, and does nothing without a device
    memory.is_initialized = lambda: say.__setitem__("emptied", say.get("emptied", 0) + 1)
    gc.callbacks.append(lambda phase, info: say.__setitem__(
        "collected", say.get("collected", 0) + (phase == "start" and info["generation"] == 2)))
    gc.disable()
    def in_step(n):
        torch.cuda.empty_cache()
        say["returned"] = gc.collect()
        if n == 5:
            try:
                raise MemoryError
            except MemoryError:
                torch.cuda.empty_cache()  # a loop that recovers
"""
"""Eight steps with a flush and a collection each, and one flush in the handling of an error."""


def test_flushes_and_collections_in_the_loop_are_left_out_but_not_in_a_recovery(
    cured: RunCured,
) -> None:
    found = cured(job(FLUSHES), {"memory.flush": 0}, fresh=True)
    assert (found.said["emptied"], found.said.get("collected", 0)) == (1, 0)
    assert found.said["returned"] == 0
    assert found.knobs["memory.flush"].was == "in the loop"


def test_every_third_flush_goes_through(cured: RunCured) -> None:
    plain = cured(job(FLUSHES), {})
    found = cured(job(FLUSHES), {"memory.flush": 3}, fresh=True)
    assert (plain.said["emptied"], plain.said["collected"]) == (9, 8)
    assert (found.said["emptied"], found.said["collected"]) == (2 + 1, 2)
    assert found.losses == plain.losses


def test_flushes_before_training_and_in_an_evaluation_go_through(recorder: Any) -> None:
    flush = cure_flush.Flush({"memory.flush": 0})
    assert flush.lets_through("empty_cache") is True
    flush.stepped(1)
    assert flush.lets_through("empty_cache") is False
    recorder.current = SimpleNamespace(
        mine=lambda: True, evaluating=3, sampler=SimpleNamespace(stop=lambda: None)
    )
    assert flush.lets_through("empty_cache") is True
    flush.switch({})  # the other arm: as the job has it
    recorder.current.evaluating = None
    assert flush.lets_through("empty_cache") is True


def test_anomaly_mode_and_a_tracer_are_off_and_the_losses_the_same(cured: RunCured) -> None:
    setup = """
    torch.autograd.set_detect_anomaly(True)
    traced = []
    sys.setprofile(lambda *a: None)
    def in_step(n):
        say.setdefault("modes", []).append([torch.is_anomaly_enabled(),
                                             sys.getprofile() is not None])
    """
    plain = cured(job(setup), {})
    found = cured(job(setup), {"debug": False})
    assert plain.said["modes"][-1] == [True, True]
    assert found.said["modes"] == [[False, False]] * 8
    assert found.states() == {"debug": "applied"}
    assert found.losses == plain.losses


def test_a_collector_that_runs_all_the_time_is_calmed(cured: RunCured) -> None:
    setup = """
    import gc
    gc.set_threshold(1, 1, 1)
    def in_step(n):
        say["now"] = [gc.get_threshold()[0], gc.get_freeze_count() > 1000]
    """
    plain = cured(job(setup), {})
    found = cured(job(setup), {"gc.freeze": True})
    assert (plain.said["now"], found.said["now"]) == ([1, False], [700, True])
    assert found.knobs["gc.freeze"].was == "threshold 1"
    assert found.losses == plain.losses


def test_the_optimizer_is_fused_and_the_losses_equal_to_rounding(cured: RunCured) -> None:
    setup = """
    def in_step(n):
        optimizer = next(o for o in gc.get_objects() if type(o) is torch.optim.AdamW)
        say["fused"] = optimizer.param_groups[0]["fused"]
    import gc
    zero["set_to_none"] = False
    """
    adamw = "torch.optim.AdamW(model.parameters(), lr=0.05)"
    end = "say['grads'] = all(p.grad is None for p in model.parameters())"
    plain = cured(job(setup, end, optimizer=adamw), {})
    settings = {"optimizer.fused": True, "optimizer.set_to_none": True}
    found = cured(job(setup, end, optimizer=adamw), settings)
    assert (plain.said["fused"], plain.said["grads"]) == (None, False)
    assert (found.said["fused"], found.said["grads"]) == (True, True)
    assert set(found.states().values()) == {"applied"}
    assert found.losses == pytest.approx(plain.losses, rel=1e-5)


class _Own(torch.optim.AdamW):
    """Whoever derives an optimizer may not have the kernel's arithmetic."""


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda p: torch.optim.AdamW(p), ""),
        (lambda p: torch.optim.SGD(p, lr=1, momentum=0.9), ""),
        (lambda p: torch.optim.AdamW(p, fused=True), "so already"),
        (lambda p: torch.optim.RMSprop(p), "RMSprop has no fused kernel"),
        (lambda p: _Own(p), "_Own has no fused kernel"),
        (lambda p: torch.optim.AdamW(p, differentiable=True), "differentiable"),
        (lambda p: torch.optim.AdamW([p[0].to(torch.complex64)]), "floating-point"),
        (lambda p: torch.optim.AdamW([p[0].to("meta")]), "no fused kernel for parameters on meta"),
    ],
)
def test_only_what_has_a_fused_kernel_is_fused(
    make: Callable[[list[torch.Tensor]], Any], reason: str
) -> None:
    optimizer = make([torch.ones(3)])
    found = cure_optimizer.Fused({"optimizer.fused": True}).why_not(optimizer)
    assert reason in found
    assert bool(found) is bool(reason)


def test_the_states_of_a_resumed_optimizer_fit_the_fused_kernel() -> None:
    """They were made without it; three more steps give what the plain optimizer gives."""
    parameters = []
    for fused in (False, True):
        p = torch.nn.Parameter(torch.arange(4.0))
        optimizer = torch.optim.AdamW([p], lr=0.1)
        for n in range(5):
            p.grad = torch.full((4,), float(n + 1))
            if fused and n == 2:
                cure_optimizer.Fused({"optimizer.fused": True}).steps(optimizer, (), {})
            optimizer.step()
        parameters.append(p.detach())
        assert optimizer.param_groups[0]["fused"] is (True if fused else None)
    torch.testing.assert_close(*parameters)


# ------------------------------------------------------------------------------------------ cores


@pytest.mark.parametrize(
    ("allowed", "nearest", "wanted"),
    [
        (range(8), [[], []], [[0, 1, 2, 3], [4, 5, 6, 7]]),  # nothing is known: even parts
        (range(8), [[0, 1, 2, 3], [4, 5, 6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]),  # two sockets
        (range(8), [[4, 5, 6, 7]] * 2, [[4, 5], [6, 7]]),  # both devices on one socket
        (range(8), [[4, 5, 6, 7], []], [[4, 5, 6, 7], list(range(8))]),  # one has no device
        ([0, 2, 4], [[8, 9]], [[0, 2, 4]]),  # a mask that leaves none of the near ones
        (range(6), [[]] * 4, [[0], [1, 2], [3], [4, 5]]),
    ],
    ids=["unknown", "sockets", "shared", "half", "mask", "uneven"],
)
def test_ranks_share_the_cores_near_their_devices(
    allowed: Any, nearest: list[list[int]], wanted: list[list[int]]
) -> None:
    cores = [cure_affinity.share(list(allowed), nearest, r) for r in range(len(nearest))]
    assert cores == wanted


def test_core_lists_are_read_and_written_as_linux_does() -> None:
    assert cure_affinity.numbers("0-2,8,10-11") == [0, 1, 2, 8, 10, 11]
    assert cure_affinity.numbers("") == []
    assert cure_affinity.ranges([0, 1, 2, 8, 10, 11]) == "0-2,8,10-11"


@pytest.mark.skipif(len(cure_affinity.START) < 2, reason="needs two cores")
def test_the_second_of_two_ranks_runs_on_cores_of_its_own(cured: RunCured) -> None:
    end = "say['cores'] = sorted(os.sched_getaffinity(0))"
    found = cured(job(end=end), {"cpu.affinity": True}, LOCAL_RANK="1", LOCAL_WORLD_SIZE="2")
    allowed = sorted(os.sched_getaffinity(0))
    assert found.said["cores"] == allowed[len(allowed) // 2 :]
    assert found.states() == {"cpu.affinity": "applied"}


@pytest.mark.skipif(len(cure_affinity.START) < 2, reason="needs two cores")
def test_a_script_that_binds_itself_gets_the_cores_back_that_it_was_started_with(
    cured: RunCured,
) -> None:
    setup = f"os.sched_setaffinity(0, {{{cure_affinity.START[0]}}})"
    found = cured(job(setup, "say['cores'] = len(os.sched_getaffinity(0))"), {"cpu.affinity": True})
    assert found.said["cores"] == len(cure_affinity.START)
    assert found.knobs["cpu.affinity"].was == str(cure_affinity.START[0])


def test_the_cores_near_a_device_are_read_from_its_pci_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "0000:3b:00.0"
    place.mkdir()
    (place / "local_cpulist").write_text("16-19\n")
    properties = SimpleNamespace(pci_domain_id=0, pci_bus_id=0x3B, pci_device_id=0)
    cuda = SimpleNamespace(
        is_initialized=lambda: True, device_count=lambda: 1, current_device=lambda: 0,
        get_device_properties=lambda index: properties,
    )  # fmt: skip
    monkeypatch.setattr(cure_affinity, "PCI", str(tmp_path))
    monkeypatch.setattr(torch, "cuda", cuda)
    assert cure_affinity.near(0) == [16, 17, 18, 19]
    assert cure_affinity.near(1) == []
    properties.pci_bus_id = 0x99  # a container without the folder
    assert cure_affinity.near(0) == []


# -------------------------------------------------------------------------------------- variables


@pytest.mark.parametrize(
    ("backend", "states"),
    [("nccl", ["applied"]), ("cpu:gloo,cuda:nccl", ["applied"]), ("gloo", [])],
)
def test_variables_of_nccl_count_where_there_is_a_group_of_it(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, backend: str, states: list[str]
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_backend", lambda: backend)
    cure_environment.Nccl({"nccl.algo": "Ring"}).stepped(1)
    assert [state for state, _ in plan.states.values()] == states


@pytest.mark.parametrize(("kind", "state"), [("native", "applied"), ("custom", "unavailable")])
def test_the_allocators_options_are_those_of_torchs_own(
    plan: Plan, monkeypatch: pytest.MonkeyPatch, kind: str, state: str
) -> None:
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: kind)
    cure_environment.Allocator({"allocator.expandable_segments": True}).stepped(1)
    assert plan.states["allocator.expandable_segments"][0] == state


@pytest.fixture(autouse=True)
def _thaw() -> Iterator[None]:
    yield
    gc.unfreeze()
