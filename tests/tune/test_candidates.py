"""From findings to what is worth a trial."""

from __future__ import annotations

import math

import pytest

from brim.diagnose.causes import CAUSES
from brim.diagnose.gain import gain
from brim.record.findings import Finding
from brim.tune.candidates import Candidate, Job, candidates
from brim.tune.knobs import KNOBS, check

BY_HAND = {
    "host.sync", "host.gil", "host.recompile", "host.offload", "host.periodic",
    "compute.padding", "compute.expert-loop", "comm.straggler-data", "comm.straggler-device",
    "device.throttled", "device.shared",
}  # fmt: skip
"""Causes whose cure is in the user's code, data or machine room."""


def _finding(cause: str, share: float = 0.4, **facts: float | str) -> Finding:
    return Finding(
        cause=cause, share=share, gain=gain(cause, share), confidence="high", evidence=[],
        facts=facts,
    )  # fmt: skip


def _of(*findings: Finding, **job: int | bool | None) -> list[Candidate]:
    return candidates(findings, Job(**{"cores": 8, **job}))  # type: ignore[arg-type]


@pytest.mark.parametrize("cause", sorted(set(CAUSES)))
def test_every_cause_has_settings_within_their_ranges_or_is_known_to_need_the_user(
    cause: str,
) -> None:
    found = _of(_finding(cause))
    assert bool(found) == (cause not in BY_HAND)
    for candidate in found:
        check(candidate.settings)
        assert 1.0 < candidate.expected <= 1.0001 / 0.6
        if candidate.axis is not None:
            knob = KNOBS[candidate.axis.knob]
            assert candidate.settings[candidate.axis.knob] in candidate.axis.values
            assert all(knob.admits(value) for value in candidate.axis.values)


def test_the_largest_expected_gain_comes_first_across_findings() -> None:
    found = _of(_finding("host.gc", 0.1), _finding("host.debug-mode", 0.5))
    assert [c.cause for c in found] == ["host.debug-mode", "host.gc"]


def test_the_number_of_workers_is_the_one_that_the_diagnosis_computed() -> None:
    first = _of(_finding("input.workers", workers=6, needed=6, now=2))[0]
    assert first.settings["loader.num_workers"] == 6
    assert first.axis is not None
    assert list(first.axis.values) == [1, 3, 6, 7, 8, 12]


@pytest.mark.parametrize(
    ("share", "cores", "workers"), [(0.5, 8, 2), (0.75, 8, 4), (0.95, 8, 7), (0.9, 2, 1)]
)
def test_a_loader_in_the_training_process_gets_as_many_workers_as_keep_up_and_fit(
    share: float, cores: int, workers: int
) -> None:
    first = _of(_finding("input.main-process", share, batch_s=0.1, blocked=0), cores=cores)[0]
    assert first.settings["loader.num_workers"] == workers
    assert first.settings["loader.persistent_workers"] is True


def test_a_loader_that_waits_for_storage_needs_no_core_for_each_worker() -> None:
    found = _of(_finding("input.storage", kind="latency", workers=2), cores=2)
    assert found[0].settings["loader.num_workers"] == 8


def test_a_queue_that_is_no_torch_loader_has_no_knob() -> None:
    assert _of(_finding("input.workers", custom=1)) == []


def test_equal_settings_are_proposed_once_and_their_gains_multiply() -> None:
    restart, startup = _finding("input.worker-restart", 0.5), _finding("input.startup", 0.1)
    (found,) = _of(restart, startup)
    assert found.cause == "input.worker-restart"
    assert found.expected == pytest.approx(_of(restart)[0].expected * _of(startup)[0].expected)


def test_what_compiles_must_promise_three_times_as_much_to_come_first() -> None:
    order = [next(iter(c.settings)) for c in _of(_finding("compute.unfused"))]
    assert order == ["liger", "compile.blocks", "optimizer.fused"]
    compiled = next(c for c in _of(_finding("compute.unfused")) if "compile.blocks" in c.settings)
    assert compiled.worth == pytest.approx(math.log(compiled.expected) / 3)


@pytest.mark.parametrize(
    ("batch", "accumulation", "values"),
    [(2, 8, (2, 4, 8, 16)), (1, 6, (1, 2, 3, 6)), (8, 1, None), (None, 8, None), (4, None, None)],
)
def test_a_micro_batch_only_grows_and_only_into_the_passes_that_there_are(
    batch: int | None, accumulation: int | None, values: tuple[int, ...] | None
) -> None:
    found = _of(_finding("host.launch"), batch=batch, accumulation=accumulation)
    axes = [c.axis for c in found if "batch.micro" in c.settings]
    assert [axis.values for axis in axes if axis] == ([values] if values else [])


def test_attention_is_tried_from_the_fastest_kernel_to_the_slowest() -> None:
    found = [c.settings.get("attention.implementation") for c in _of(_finding("compute.attention"))]
    assert found[:4] == ["flash_attention_4", "flash_attention_3", "flash_attention_2", "sdpa"]


def test_without_findings_only_a_device_has_something_to_try() -> None:
    assert _of() == []
    device = _of(device=True)
    assert {"optimizer.fused": True} in [c.settings for c in device]
    assert all(c.cause == "" for c in device)


def test_narrower_types_are_marked_as_lossy() -> None:
    assert not any(c.lossless for c in _of(_finding("compute.precision")))
    assert all(c.lossless for c in _of(_finding("compute.attention")))
