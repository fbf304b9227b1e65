"""Predictions against the simulator: the tape is recorded again without the fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brim.diagnose.trace import diagnose_traces
from brim.diagnose.trace.context import TraceContext
from brim.diagnose.trace.rank import Rank
from brim.diagnose.trace.whatif import WhatIf, gain_range
from brim.record.kineto import Trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, x>"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"

Read = Callable[..., Trace]


def loader(tape: Any, us: float, *, small: bool) -> None:
    for number in range(6):
        with tape.step(number):
            with tape.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                tape.pause(us)
            for _ in range(40):
                tape.run("aten::mm", GEMM, 8.0 if small else 60.0, before=6.0)


def syncs(tape: Any, every: int) -> None:
    for number in range(6):
        with tape.step(number):
            for layer in range(40):
                tape.run("aten::mm", GEMM, 60.0)
                if every and layer % every == every - 1:
                    tape.item()
                    tape.pause(100)


def collectives(tape: Any, us: float) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(20):
                tape.run("aten::mm", GEMM, 60.0)
            tape.run("record_param_comms", NCCL, us)


def predicted(trace: Trace, cause: str) -> float:
    what_if = WhatIf(Rank(trace, TraceContext()))
    assert what_if.fidelity == pytest.approx(1.0, abs=0.02)
    speedup = what_if.speedup(cause, 0.0)
    assert speedup is not None
    return speedup


@pytest.mark.parametrize("small", [True, False])
def test_without_its_loader_a_replay_is_as_long_as_the_program_without_a_loader(
    new_tape: Callable[..., Any], read: Read, small: bool
) -> None:
    slow, fast = new_tape(), new_tape()
    loader(slow, 2500, small=small)
    loader(fast, 0, small=small)
    truth = slow.length / fast.length
    assert predicted(read(slow), "input.main-process") == pytest.approx(truth, rel=0.03)


def test_a_loader_hidden_behind_the_device_is_worth_nothing(
    new_tape: Callable[..., Any], read: Read
) -> None:
    slow, fast = new_tape(), new_tape()
    for tape, us in ((slow, 1000), (fast, 0)):
        for number in range(8):
            with tape.step(number):
                with tape.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                    tape.pause(us)
                for _ in range(40):
                    tape.run("aten::mm", GEMM, 60.0)
    truth = slow.length / fast.length
    assert truth < 1.1
    assert predicted(read(slow), "input.main-process") == pytest.approx(truth, rel=0.02)


def test_without_syncs_the_host_runs_ahead_again(new_tape: Callable[..., Any], read: Read) -> None:
    slow, fast = new_tape(), new_tape()
    syncs(slow, 4)
    syncs(fast, 0)
    truth = slow.length / fast.length
    trace = read(slow)
    finding = diagnose_traces([trace]).findings[0]
    assert finding.cause == "host.sync"
    low, high = finding.gain
    assert low <= truth <= high * 1.15
    assert predicted(trace, "host.sync") == pytest.approx(truth, rel=0.15)


def test_a_free_collective_gives_its_time_back(new_tape: Callable[..., Any], read: Read) -> None:
    slow, fast = new_tape(), new_tape()
    collectives(slow, 400)
    collectives(fast, 0.001)
    truth = slow.length / fast.length
    assert predicted(read(slow), "comm.exposed") == pytest.approx(truth, rel=0.02)


def test_a_free_collective_is_worth_nothing_where_the_host_is_the_limit(
    new_tape: Callable[..., Any], read: Read
) -> None:
    slow = new_tape()
    for number in range(6):
        with slow.step(number):
            for _ in range(40):
                slow.run("aten::mm", GEMM, 4.0, before=30.0)
                slow.run("record_param_comms", NCCL, 5.0, before=30.0)
    trace = read(slow)
    assert predicted(trace, "comm.exposed") < 1.02
    finding = next(f for f in diagnose_traces([trace]).findings if f.cause.startswith("comm."))
    assert finding.gain[0] < 1.02, "the lower end knows what hides behind"


def test_a_cause_that_the_replay_cannot_express_has_no_prediction(tape: Any, read: Read) -> None:
    loader(tape, 0, small=False)
    what_if = WhatIf(Rank(read(tape), TraceContext()))
    assert what_if.speedup("comm.straggler-data", 0.0) is None
    assert what_if.speedup("compute.attention", 0.0) is None


def test_a_range_never_promises_more_than_the_share_and_never_a_loss() -> None:
    assert gain_range(0.334, [1.49, 1.24]) == pytest.approx((1 / (1 - 0.167), 1 / (1 - 0.334)))
    assert gain_range(0.5, [1.05, 1.02]) == pytest.approx((1.02, 2.0))
    assert gain_range(0.2, [None, None]) == pytest.approx((1 / 0.9, 1.25))
    assert gain_range(0.2, [0.9])[0] == 1.0
