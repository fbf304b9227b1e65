"""Operations in a slow implementation: named by what they are, or by hundreds of launches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brim.diagnose.trace import TraceContext, diagnose_traces
from brim.record.findings import Diagnosis
from brim.record.kineto import Trace, read_trace

GEMM = "nvjet_sm90_tst_8x64_64x16_2x1_v_badd_TNN"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, x>"
VOL2COL = "void at::native::vol2col_kernel<c10::BFloat16>(long, c10::BFloat16 const*)"
COPY = "Memcpy DtoD (Device -> Device)"
FIXTURE = (
    Path(__file__).parents[2] / "fixtures" / "traces" / "compute.slow-kernel--h200-conv3d.json.gz"
)

Read = Callable[..., Trace]


def share(diagnosis: Diagnosis, cause: str) -> float:
    return sum(e.share for e in diagnosis.account if e.cause == cause)


def causes(diagnosis: Diagnosis) -> list[str]:
    return [f.cause for f in diagnosis.findings]


def convolve(tape: Any, patches: int, channels: int) -> None:
    """Conv3d without a library: per patch columns, one product, and a copy of each bias."""
    dims = [[patches, 3, 2, 16, 16], [channels, 3, 2, 16, 16], [], [channels], [], [], []]
    kinds = ["c10::BFloat16"] * 2 + [""] + ["c10::BFloat16"] + [""] * 3
    with tape.op("aten::conv3d", **{"Input Dims": dims}), tape.op(
        "aten::slow_conv_dilated3d", **{"Input Dims": dims, "Input type": kinds}
    ):  # fmt: skip
        for _ in range(patches):
            for _ in range(channels):
                with tape.op("aten::copy_", before=1.0):
                    tape.copy(COPY, 0.75, 2)
            tape.run("aten::vol2col", VOL2COL, 28.0)
            tape.run("aten::mm", GEMM, 9.0)


def test_a_convolution_that_copies_every_bias_alone_is_slow_and_not_the_launching(
    tape: Any, read: Read
) -> None:
    """Device idle 90 % under one operation: 16 × 66 launches a call."""
    for number in range(3):
        with tape.step(number), tape.frame("train.py(40): step"):
            with tape.frame("train.py(12): embed"):
                convolve(tape, 16, 64)
            for _ in range(5):
                tape.run("aten::mm", GEMM, 40.0)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis) == ["compute.slow-kernel"]
    assert share(diagnosis, "compute.slow-kernel") > 0.95
    assert share(diagnosis, "host.launch") < 0.02
    finding = diagnosis.findings[0]
    assert "aten::slow_conv_dilated3d on [16" in finding.evidence[0]
    assert "1,056 launches in one call, 3 such calls" in finding.evidence[0]
    assert finding.where is not None
    assert (finding.where.line, finding.where.function) == (12, "embed")
    assert sum(e.share for e in diagnosis.account) == pytest.approx(1.0)
    low, high = finding.gain
    assert low > 1.5 and high > 10


def test_copies_of_a_slow_path_are_its_own_and_others_are_not(tape: Any, read: Read) -> None:
    for number in range(3):
        with tape.step(number):
            convolve(tape, 4, 64)
            tape.copy(COPY, 3000.0, 1 << 30)
            tape.run("aten::mm", GEMM, 100.0)
    account = {(e.part, e.cause): e.share for e in diagnose_traces([read(tape)]).account}
    whole = tape.length / 3
    assert account["busy-not-computing", "compute"] == pytest.approx(3000 / whole, rel=0.05)
    assert 0 < account["busy-lost", "compute.slow-kernel"] < 4 * (64 * 0.75 + 37) / whole * 1.01


def test_one_operation_with_hundreds_of_launches_is_slow_whatever_its_name(
    tape: Any, read: Read
) -> None:
    for number in range(3):
        with tape.step(number):
            with tape.op("aten::my_scan", **{"Input Dims": [[300, 64]]}):
                for _ in range(300):
                    tape.run("aten::add", ADD, us=2.0, before=6.0)
            tape.run("aten::mm", GEMM, 100.0)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "compute.slow-kernel"
    assert "aten::my_scan on [300, 64]: 300 launches" in diagnosis.findings[0].evidence[0]


@pytest.mark.parametrize(
    "name",
    ["aten::_foreach_add_", "aten::_cudnn_rnn", "aten::lstm", "CompiledFunction",
     "autograd::engine::evaluate_function: CheckpointBackward", "Optimizer.step#AdamW.step",
     "aten::linalg_qr", "LigerFusedLinearCrossEntropyFunction"],
)  # fmt: skip
def test_what_launches_much_by_its_nature_stays_the_hosts(name: str, tape: Any, read: Read) -> None:
    for number in range(3):
        with tape.step(number):
            with tape.op(name):
                for _ in range(300):
                    tape.run("aten::add", ADD, us=2.0, before=6.0)
            tape.run("aten::mm", GEMM, 100.0)
    diagnosis = diagnose_traces([read(tape)])
    assert causes(diagnosis)[0] == "host.launch"
    assert share(diagnosis, "compute.slow-kernel") == 0.0


def test_many_operations_of_some_launches_stay_the_hosts(tape: Any, read: Read) -> None:
    for number in range(3):
        with tape.step(number):
            for _ in range(20):
                with tape.op("aten::einsum"):
                    for _ in range(15):
                        tape.run("aten::add", ADD, us=2.0, before=6.0)
    assert causes(diagnose_traces([read(tape)]))[0] == "host.launch"


def test_input_beside_a_slow_path_stays_input(tape: Any, read: Read) -> None:
    for number in range(3):
        with tape.step(number):
            with tape.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                tape.pause(20_000)
            convolve(tape, 4, 64)
    diagnosis = diagnose_traces([read(tape)])
    assert set(causes(diagnosis)) == {"input.main-process", "compute.slow-kernel"}
    assert share(diagnosis, "input.main-process") == pytest.approx(
        20_000 * 3 / tape.length, abs=0.02
    )


def test_the_profilers_cost_is_taken_out_of_the_idleness_of_a_slow_path(
    tape: Any, read: Read
) -> None:
    for number in range(3):
        with tape.step(number):
            convolve(tape, 8, 64)
    trace = read(tape)
    half = diagnose_traces([trace], context=TraceContext(step_s=tape.length * 0.5e-6 / 3))
    account = {(e.part, e.cause): e.share for e in half.account}
    assert account["idle", "compute.slow-kernel"] < 0.9
    assert sum(account.values()) == pytest.approx(1.0)


def test_a_patch_by_patch_convolution_on_an_h200_takes_91_percent_of_its_step() -> None:
    """163 ms a step against 4.1 ms as a matrix product; the recorded step begins with 12 ms in
    which nothing was queued."""
    diagnosis = diagnose_traces([read_trace(FIXTURE)])
    assert causes(diagnosis) == ["compute.slow-kernel"]
    assert share(diagnosis, "compute.slow-kernel") == pytest.approx(0.914, abs=0.01)
    assert "8,193 launches in one call" in diagnosis.findings[0].evidence[0]
