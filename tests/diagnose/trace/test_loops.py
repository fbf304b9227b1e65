"""Loops over experts, against layers that repeat and against the same experts in one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brim.diagnose.trace import TraceContext, diagnose_traces
from brim.diagnose.trace.loops import FEWEST, Loops
from brim.diagnose.trace.rank import Rank
from brim.record.findings import Diagnosis, check
from brim.record.kineto import Trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
INDEX = "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int, long)"
SCATTER = "void at::native::indexFuncLargeIndex<c10::BFloat16, long, unsigned int, 2, 2, -2>"
AUTOGRAD = 101

Read = Callable[..., Trace]


def product(tape: Any, rows: int, inner: int, out: int, us: float, **more: Any) -> None:
    dims = [[rows, inner], [inner, out]]
    kinds = ["c10::BFloat16", "c10::BFloat16"]
    tape.run("aten::mm", GEMM, us, **{"Input Dims": dims, "Input type": kinds, **more})


def expert(tape: Any, rows: int, us: float = 4.0, **more: Any) -> None:
    """Gather, up, down, scatter back."""
    tape.run("aten::index", INDEX, 2.0, **more)
    product(tape, rows, 512, 1024, us, **more)
    product(tape, rows, 1024, 512, us, **more)
    tape.run("aten::index_add_", SCATTER, 2.0, **more)


def layer(tape: Any, rows: list[int], *, reads: bool = False, **more: Any) -> None:
    """A long attention product, the router, then the experts one after the other."""
    product(tape, 4096, 512, 512, 150.0)
    product(tape, 4096, 512, len(rows), 5.0)
    for count in rows:
        if reads:
            tape.item()
        expert(tape, count, **more)


ROWS = [700, 40, 310, 95, 512, 5, 260, 126]


def looping(tape: Any, layers: int = 3, *, reads: bool = False) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(layers):
                layer(tape, ROWS, reads=reads)


def diagnosed(trace: Trace) -> Diagnosis:
    return check(diagnose_traces([trace]))


def share(diagnosis: Diagnosis, cause: str) -> float:
    return sum(entry.share for entry in diagnosis.account if entry.cause == cause)


def loops(trace: Trace) -> Loops:
    return Rank(trace, TraceContext()).loops


def test_each_layer_of_each_step_has_a_loop_over_its_eight_experts(tape: Any, read: Read) -> None:
    looping(tape, 3)
    found = loops(read(tape)).found
    assert len(found) == 6 * 3
    assert {loop.rows for loop in found} == {tuple(ROWS)}


def test_the_idle_device_beside_the_loop_is_the_loops_and_not_the_launches(
    tape: Any, read: Read
) -> None:
    looping(tape)
    diagnosis = diagnosed(read(tape))
    (finding,) = diagnosis.findings
    assert finding.cause == "compute.expert-loop"
    # 4 launches of 6 µs an expert, of which the device works 12: the host needs twice as long
    assert 0.2 < finding.share < 0.6
    assert share(diagnosis, "host.launch") < 0.02
    text = " ".join(finding.evidence)
    assert "18 loops of up to 8 experts" in text and "(5 to 700)" in text


def test_reads_of_device_values_inside_the_loop_are_the_loops_too(tape: Any, read: Read) -> None:
    looping(tape, reads=True)
    diagnosis = diagnosed(read(tape))
    assert diagnosis.findings[0].cause == "compute.expert-loop"
    assert share(diagnosis, "host.sync") < 0.02


def test_the_replay_without_the_loop_gains_what_the_loop_takes(tape: Any, read: Read) -> None:
    looping(tape)
    (finding,) = diagnosed(read(tape)).findings
    low, high = finding.gain
    assert 1.0 < low <= high
    assert high == pytest.approx(1 / (1 - finding.share), rel=0.25)


def test_the_backward_of_a_loop_belongs_to_it_by_its_sequence_numbers(
    tape: Any, read: Read
) -> None:
    for number in range(6):
        with tape.step(number):
            first = 100 * number
            product(tape, 4096, 512, 512, 150.0, **{"Sequence number": first})
            product(tape, 4096, 512, 8, 5.0, **{"Sequence number": first + 1})
            for k, rows in enumerate(ROWS):
                expert(tape, rows, **{"Sequence number": first + 10 + k, "Fwd thread id": 0})
            with tape.on(AUTOGRAD):
                for k in reversed(range(len(ROWS))):
                    numbers = {"Sequence number": first + 10 + k, "Fwd thread id": 100}
                    node = "autograd::engine::evaluate_function: MmBackward0"
                    with tape.op(node, **numbers):
                        product(tape, ROWS[k], 1024, 512, 4.0)
                node = "autograd::engine::evaluate_function: MmBackward0"
                with tape.op(node, **{"Sequence number": first, "Fwd thread id": 100}):
                    product(tape, 4096, 512, 512, 150.0)
    spans = loops(read(tape)).spans
    assert len(spans) == 2
    # eight nodes of 8 µs; the last node, of the attention, is not in the loop
    assert spans[max(spans)].total == 6 * 8 * 8_000


@pytest.mark.parametrize("rows", [[256] * 8, [700, 40, 310][: FEWEST - 1], []])
def test_equal_rows_or_a_few_products_are_no_loop_over_experts(
    tape: Any, read: Read, rows: list[int]
) -> None:
    for number in range(6):
        with tape.step(number):
            layer(tape, rows)
    assert loops(read(tape)).found == []


def test_layers_that_gather_and_scatter_once_each_are_no_loop(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for count in ROWS:
                product(tape, 4096, 512, 512, 150.0)
                expert(tape, count)
    assert loops(read(tape)).found == []


def test_one_grouped_product_for_all_experts_is_healthy(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in range(3):
                product(tape, 4096, 512, 512, 150.0)
                tape.run("aten::index", INDEX, 10.0)
                tape.run("aten::_grouped_mm", GEMM, 60.0)
                tape.run("aten::_grouped_mm", GEMM, 60.0)
                tape.run("aten::index_add_", SCATTER, 10.0)
    diagnosis = diagnosed(read(tape))
    assert [f.cause for f in diagnosis.findings] == []


def test_products_whose_sizes_were_not_recorded_are_no_loop(tape: Any, read: Read) -> None:
    for number in range(6):
        with tape.step(number):
            for _ in ROWS:
                for op, kernel in (("index", INDEX), ("mm", GEMM), ("index_add_", SCATTER)):
                    tape.run(f"aten::{op}", kernel, 4.0)
    assert loops(read(tape)).found == []
