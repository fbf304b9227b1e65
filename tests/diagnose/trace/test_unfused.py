"""What a fused kernel gives back, against counts of the arrays that move."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brim.diagnose.trace import diagnose_traces
from brim.record.kineto import Trace, read_trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
EAGER = "void at::native::vectorized_elementwise_kernel<8, at::native::{}_kernel(at::TensorBase&)>"
NORM = "_rms_norm_forward_kernel"
FIXTURE = (
    Path(__file__).parents[2] / "fixtures" / "traces" / "compute.attention--h200-vlm-mask.json.gz"
)
WIDE, NARROW = [8, 2048, 9728], [8, 2048, 2560]

Read = Callable[..., Trace]


def eager(tape: Any, name: str, us: float, size: list[int]) -> None:
    tape.run(f"aten::{name}", EAGER.format(name), us, **{"Input Dims": [size, size, []]})


def lost_us(tape: Any, read: Read) -> float:
    """Unfused time of one step of three, µs."""
    account = diagnose_traces([read(tape)]).account
    share = sum(e.share for e in account if e.cause == "compute.unfused")
    return share * tape.length / 3


def three_steps(tape: Any, body: Callable[[], None]) -> None:
    for number in range(3):
        with tape.step(number):
            for _ in range(8):
                tape.run("aten::mm", GEMM, 400.0)
            body()


def test_a_gated_activation_moves_5_arrays_and_needs_3(tape: Any, read: Read) -> None:
    def forward() -> None:
        tape.run("aten::mm", GEMM, 100.0)
        eager(tape, "silu", 40.0, WIDE)  # two arrays
        tape.run("aten::mm", GEMM, 100.0)  # the other input
        eager(tape, "mul", 60.0, WIDE)  # three
        tape.run("aten::mm", GEMM, 100.0)

    three_steps(tape, forward)
    assert lost_us(tape, read) == pytest.approx(100.0 * 2 / 5, rel=0.02)


def test_its_backward_moves_9_arrays_and_needs_5(tape: Any, read: Read) -> None:
    def backward() -> None:
        tape.run("aten::mm", GEMM, 100.0)
        eager(tape, "mul", 60.0, WIDE)
        eager(tape, "mul", 60.0, WIDE)
        tape.run("aten::mm", GEMM, 100.0)
        tape.run("aten::mm", GEMM, 100.0)
        eager(tape, "silu_backward", 60.0, WIDE)
        tape.run("aten::mm", GEMM, 100.0)

    three_steps(tape, backward)
    assert lost_us(tape, read) == pytest.approx(180.0 * 4 / 9, rel=0.02)


@pytest.mark.parametrize(
    "between",
    [lambda tape: None, lambda tape: eager(tape, "mul", 60.0, NARROW),
     lambda tape: tape.run("aten::native_layer_norm", NORM, 60.0, **{"Input Dims": [WIDE]})],
    ids=["no product follows", "a product of other sizes", "a norm in between"],
)  # fmt: skip
def test_an_activation_without_its_gate_has_nothing_to_fuse(
    between: Callable[[Any], None], tape: Any, read: Read
) -> None:
    def forward() -> None:
        tape.run("aten::mm", GEMM, 100.0)
        eager(tape, "silu", 40.0, WIDE)
        tape.run("aten::mm", GEMM, 100.0)
        between(tape)
        tape.run("aten::mm", GEMM, 100.0)

    three_steps(tape, forward)
    assert lost_us(tape, read) == 0.0


def test_a_sum_before_a_norm_of_its_size_saves_one_array_of_three(tape: Any, read: Read) -> None:
    def block() -> None:
        tape.run("aten::mm", GEMM, 100.0)
        eager(tape, "add", 30.0, NARROW)
        tape.run("LigerRMSNormFunction", NORM, 25.0, **{"Input Dims": [NARROW]})
        tape.run("aten::mm", GEMM, 100.0)
        eager(tape, "add", 30.0, NARROW)  # no norm follows
        tape.run("aten::mm", GEMM, 100.0)
        eager(tape, "add", 30.0, WIDE)  # a norm of something else follows
        tape.run("LigerRMSNormFunction", NORM, 25.0, **{"Input Dims": [NARROW]})

    three_steps(tape, block)
    assert lost_us(tape, read) == pytest.approx(10.0, rel=0.02)


def test_kernels_without_sizes_are_not_paired(tape: Any, read: Read) -> None:
    def forward() -> None:
        tape.run("aten::silu", EAGER.format("silu"), 40.0)
        tape.run("aten::mm", GEMM, 100.0)
        tape.run("aten::mul", EAGER.format("mul"), 60.0)

    three_steps(tape, forward)
    assert lost_us(tape, read) == 0.0


def test_a_model_with_fused_norms_and_eager_gates_on_an_h200_loses_2_4_percent() -> None:
    """By hand, of kernel time: gates 3.5 % × 0.43, chains of copies, sums and additions 1.3 %,
    sums before norms 0.9 % / 3; kernels run 84 % of the step."""
    account = diagnose_traces([read_trace(FIXTURE)]).account
    share = sum(e.share for e in account if e.cause == "compute.unfused")
    assert share == pytest.approx(0.024, abs=0.003)
