"""The measured window: steps of the device, where the host is far ahead of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brim.diagnose.trace import TraceContext, diagnose_traces
from brim.diagnose.trace.device import DeviceSide
from brim.record.kineto import Trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
SGEMM = "ampere_sgemm_128x64_nn"

Read = Callable[..., Trace]


def ahead(tape: Any) -> None:
    """Two steps whose kernels take 4,000 µs each and whose launches 120; 5,000 µs were queued
    before the first."""
    tape.kernel(SGEMM, 5000.0)
    for number in range(2):
        with tape.step(number):
            for _ in range(20):
                tape.run("aten::mm", GEMM, 200.0)


def test_a_step_of_the_device_begins_when_it_has_done_what_was_queued_before(
    tape: Any, read: Read
) -> None:
    ahead(tape)
    device = DeviceSide(read(tape), in_flight=True)
    low, high = device.window
    assert (high - low) / 1e3 == pytest.approx(2 * 4000, abs=1)
    host_low, host_high = device.host_window
    assert (host_high - host_low) / 1e3 == pytest.approx(2 * 120, abs=10)


def test_work_of_before_the_window_is_no_work_of_its_steps(tape: Any, read: Read) -> None:
    ahead(tape)
    diagnosis = diagnose_traces([read(tape)], context=TraceContext(step_s=4000e-6))
    assert diagnosis.findings == []  # the fp32 product lies before
    assert diagnosis.metrics["profiled_step_s"] == pytest.approx(4000e-6, rel=0.01)
    steps = diagnosis.details["steps"]
    assert [round(row["compute_us"]) for row in steps] == [4000, 4000]


def test_events_whose_launch_was_not_captured_were_launched_before(tape: Any, read: Read) -> None:
    ahead(tape)
    for event in tape.events:
        if event["cat"] == "cuda_runtime" and event["args"]["correlation"] == 1:
            event["args"]["correlation"] = 10_000  # launched before the capture began
    low, high = DeviceSide(read(tape), in_flight=True).window
    assert (high - low) / 1e3 == pytest.approx(2 * 4000, abs=1)


def test_a_host_that_is_late_has_the_same_steps_as_its_device(tape: Any, read: Read) -> None:
    for number in range(3):
        with tape.step(number):
            tape.pause(2000)
            tape.run("aten::mm", GEMM, 200.0)
            tape.sync()
    device = DeviceSide(read(tape), in_flight=True)
    assert device.window == device.host_window


def test_without_a_job_around_it_the_window_begins_with_the_hosts_step(
    tape: Any, read: Read
) -> None:
    ahead(tape)
    low, high = DeviceSide(read(tape)).window
    assert (high - low) / 1e3 == pytest.approx(5000 + 2 * 4000, abs=20)
