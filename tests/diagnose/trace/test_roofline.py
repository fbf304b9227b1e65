"""Work and roof of kernels: each call by its own sizes, and never more than the roof."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.diagnose.trace import diagnose_traces
from brim.diagnose.trace.roofline import reached
from brim.record.kineto import Trace, read_trace

KERNELS = ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN", "nvjet_sm90_tst_256x128_TNT")
PEAK, BANDWIDTH = 989.5e12, 4.8e12
FIXTURES = Path(__file__).parents[2] / "fixtures" / "traces"

Read = Callable[..., Trace]
Mm = tuple[int, int, int, float, int]
"""m, k, n, µs, which kernel"""

MM = st.tuples(
    st.integers(1, 8192), st.integers(1, 8192), st.integers(1, 8192), st.floats(1.0, 5e4),
    st.integers(0, 1),
)  # fmt: skip


def sizes(m: int, k: int, n: int) -> dict[str, Any]:
    return {"Input Dims": [[m, k], [k, n]], "Input type": ["c10::BFloat16", "c10::BFloat16"]}


def rows(trace: Trace) -> dict[str, Any]:
    return {row["name"]: row for row in diagnose_traces([trace]).details["kernels"]}


@settings(max_examples=40, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(products=st.lists(MM, min_size=1, max_size=12))
def test_rates_are_sums_over_calls_by_their_own_sizes_and_no_share_passes_1(
    products: list[Mm], new_tape: Callable[..., Any], read: Read
) -> None:
    tape = new_tape()
    with tape.step(0):
        for m, k, n, us, kernel in products:
            tape.run("aten::mm", KERNELS[kernel], round(us), **sizes(m, k, n))
    found = rows(read(tape))
    for kernel, name in enumerate(KERNELS):
        mine = [(m, k, n, round(us) * 1e-6) for m, k, n, us, which in products if which == kernel]
        if mine:
            seconds = sum(s for *_, s in mine)
            flops = sum(2.0 * m * k * n for m, k, n, _ in mine)
            touched = sum(2.0 * (m * k + k * n + m * n) for m, k, n, _ in mine)
            assert found[name]["flops_per_s"] == pytest.approx(flops / seconds, rel=1e-6)
            assert found[name]["bytes_per_s"] == pytest.approx(touched / seconds, rel=1e-6)
            least = sum(
                min(s, max(2.0 * m * k * n / PEAK, 2.0 * (m * k + k * n + m * n) / BANDWIDTH))
                for m, k, n, s in mine
            )
            assert found[name]["attainable"] == pytest.approx(least / seconds, rel=1e-2)
            assert found[name]["attainable"] <= 1.0


def test_two_sizes_of_one_kernel_are_not_counted_as_the_first(tape: Any, read: Read) -> None:
    with tape.step(0):
        tape.run("aten::mm", KERNELS[0], 1000.0, **sizes(8192, 4096, 8192))  # 550 TFLOP/s
        for _ in range(9):
            tape.run("aten::mm", KERNELS[0], 100.0, **sizes(1024, 4096, 1024))  # 86 TFLOP/s
    row = rows(read(tape))[KERNELS[0]]
    flops = 2 * 4096 * (8192 * 8192 + 9 * 1024 * 1024)
    assert row["flops_per_s"] == pytest.approx(flops / 1900e-6, rel=1e-6)


def test_a_call_whose_work_is_unknown_is_left_out_of_the_rate(tape: Any, read: Read) -> None:
    with tape.step(0):
        tape.run("aten::mm", KERNELS[0], 1000.0, **sizes(8192, 4096, 8192))
        tape.run("MyFunction", KERNELS[0], 4000.0, **{"Input Dims": [[3, 4]]})
        tape.run("aten::mm", KERNELS[0], 4000.0)  # no sizes were recorded
    row = rows(read(tape))[KERNELS[0]]
    assert row["calls"] == 3
    assert row["flops_per_s"] == pytest.approx(2 * 8192 * 4096 * 8192 / 1e-3, rel=1e-6)


def test_a_product_in_two_kernels_counts_the_time_of_both(tape: Any, read: Read) -> None:
    reduce = "void cublasLt::splitKreduce_kernel<32, 16, int, float, __nv_bfloat16>"
    with tape.step(0), tape.op("aten::mm", **sizes(4096, 4096, 4096)):
        tape.kernel(KERNELS[0], 200.0)
        tape.kernel(reduce, 50.0)
    found = rows(read(tape))
    assert found[KERNELS[0]]["flops_per_s"] == pytest.approx(2 * 4096**3 / 250e-6, rel=1e-6)
    assert found[reduce]["flops_per_s"] is None
    assert found[reduce]["op"].startswith("aten::mm")


def test_an_outer_call_does_not_claim_the_work_of_a_small_kernel_beside_an_inner_one(
    tape: Any, read: Read
) -> None:
    copy = "void at::native::elementwise_kernel<128, 4, copy>"
    outer = {"Input Dims": [[64, 4096], [4096, 4096], [4096]], "Input type": ["float"] * 3}
    with tape.step(0), tape.op("aten::linear", **outer):
        tape.kernel(copy, 2.0)
        tape.run("MyProduct", KERNELS[0], 50.0, **{"Input Dims": [[64, 4096]]})
    assert rows(read(tape))[copy]["flops_per_s"] is None


def test_a_call_that_beats_the_roof_is_at_the_roof(tape: Any, read: Read) -> None:
    with tape.step(0):
        tape.run("aten::mm", KERNELS[0], 100.0, **sizes(8192, 8192, 8192))  # 11 PFLOP/s
        tape.run("aten::mm", KERNELS[0], 100.0, **sizes(16, 16, 16))
    row = rows(read(tape))[KERNELS[0]]
    assert row["attainable"] == pytest.approx(0.5, abs=0.01)
    assert row["flops_per_s"] == pytest.approx(2 * 8192**3 / 200e-6, rel=1e-3)


def test_no_kernel_of_a_recorded_step_passes_an_h200s_peak() -> None:
    """The row that read 1.24 PFLOP/s and 125 % of the roof: nine sizes under one kernel's name."""
    diagnosis = diagnose_traces([read_trace(FIXTURES / "compute.attention--h200-vlm-mask.json.gz")])
    known = [r for r in diagnosis.details["kernels"] if r["flops_per_s"] is not None]
    products = [r for r in known if r["kind"] == "matmul" and r["share"] > 0.01]
    assert len(products) >= 6
    assert all(r["flops_per_s"] < PEAK and r["attainable"] <= 1.0 for r in known)
    # compute-bound products of a warm H200 reach 70 to 85 % of the peak
    assert all(0.65 < r["attainable"] < 0.9 for r in products)


def test_no_call_without_a_known_peak_has_a_share() -> None:
    assert reached([]) is None
