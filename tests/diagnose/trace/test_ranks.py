"""Several ranks: who waits for whom, and why."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from brim.diagnose.trace import diagnose_traces
from brim.diagnose.trace.comm import bus_factor, collective_name
from brim.errors import InputError
from brim.record.findings import Diagnosis
from brim.record.kineto import Trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
NCCL = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
STEPS, TRANSFER = 6, 100.0

New = Callable[..., Any]
Read = Callable[..., Trace]


def job(
    new_tape: New,
    read: Read,
    work: Callable[[int, int], tuple[float, int]],
    *,
    ranks: int = 4,
    rows: Callable[[int, int], int] = lambda rank, step: 1024,
    clock: Callable[[int], float] = lambda rank: 0.0,
) -> list[Trace]:
    """Ranks that compute ``work(rank, step)`` = (µs a kernel, kernels) and then reduce together.

    A collective starts when its rank arrives and ends for all when the last has arrived and the
    transfer is done.
    """
    tapes = [new_tape(start=1_000_000.0 + clock(rank)) for rank in range(ranks)]
    for step in range(STEPS):
        arrivals = []
        for rank, tape in enumerate(tapes):
            us, count = work(rank, step)
            dims = {"Input Dims": [[rows(rank, step), 512], [512, 512]]}
            with tape.step(step):
                for _ in range(count):
                    tape.run("aten::mm", GEMM, us, **dims)
            arrivals.append(max(tape.streams[7], tape.now + 10.0) - clock(rank))
        end = max(arrivals) + TRANSFER
        for rank, tape in enumerate(tapes):
            info = {"Collective name": "allreduce", "In msg nelems": 1 << 20, "dtype": "BFloat16",
                    "Out msg nelems": 1 << 20, "Group size": ranks}  # fmt: skip
            start = arrivals[rank] + clock(rank)
            tape.kernel(NCCL, end + clock(rank) - start, **info)
            tape.sync()
    for rank, tape in enumerate(tapes):
        tape.distributed = {"backend": "nccl", "rank": rank, "world_size": ranks}
    return [read(tape, f"rank{rank}.json") for rank, tape in enumerate(tapes)]


def causes(diagnosis: Diagnosis) -> list[str]:
    return [finding.cause for finding in diagnosis.findings]


def rows_of(diagnosis: Diagnosis) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = diagnosis.details["ranks"]
    return table


def test_ranks_that_arrive_together_pay_for_the_transfer(new_tape: New, read: Read) -> None:
    diagnosis = diagnose_traces(job(new_tape, read, lambda rank, step: (50.0, 10)))
    assert causes(diagnosis)[0] == "comm.exposed"
    assert not any(cause.startswith("comm.straggler") for cause in causes(diagnosis))


def test_a_late_rank_that_changes_with_its_batch_is_a_matter_of_data(
    new_tape: New, read: Read
) -> None:
    def long(rank: int, step: int) -> bool:
        return rank == step % 4

    diagnosis = diagnose_traces(
        job(
            new_tape, read,
            lambda rank, step: (120.0 if long(rank, step) else 60.0, 10),
            rows=lambda rank, step: 2048 if long(rank, step) else 1024,
        )
    )  # fmt: skip
    assert causes(diagnosis)[0] == "comm.straggler-data"
    assert "the late rank changes" in " ".join(diagnosis.findings[0].evidence)


def test_always_the_same_rank_with_more_work_is_a_matter_of_data(new_tape: New, read: Read) -> None:
    diagnosis = diagnose_traces(
        job(
            new_tape, read,
            lambda rank, step: (120.0 if rank == 2 else 60.0, 10),
            rows=lambda rank, step: 2048 if rank == 2 else 1024,
        )
    )  # fmt: skip
    assert causes(diagnosis)[0] == "comm.straggler-data"
    text = " ".join(diagnosis.findings[0].evidence)
    assert "rank 2 causes 100% of the waiting" in text and "more work" in text


def test_always_the_same_rank_at_equal_work_is_a_slow_device(new_tape: New, read: Read) -> None:
    diagnosis = diagnose_traces(
        job(new_tape, read, lambda rank, step: (90.0 if rank == 1 else 60.0, 10))
    )
    assert causes(diagnosis)[0] == "comm.straggler-device"
    assert "1.50 times as long" in " ".join(diagnosis.findings[0].evidence)
    late = {row["rank"]: row["late_us"] for row in rows_of(diagnosis)}
    # three ranks wait 10 × 30 µs for rank 1 in each of 6 steps
    assert late[1] == pytest.approx(3 * 300.0 * STEPS, rel=0.05)
    assert rows_of(diagnosis)[1]["late_calls"] == STEPS


def test_clocks_that_differ_by_3_seconds_do_not_invent_stragglers(
    new_tape: New, read: Read
) -> None:
    def together(rank: int, step: int) -> tuple[float, int]:
        return 50.0, 10

    traces = job(new_tape, read, together, clock=lambda rank: 3e6 * rank)
    diagnosis = diagnose_traces(traces)
    assert not any(cause.startswith("comm.straggler") for cause in causes(diagnosis))


def test_collectives_are_counted_and_their_bandwidth_is_that_after_the_last_arrival(
    new_tape: New, read: Read
) -> None:
    traces = job(new_tape, read, lambda rank, step: (90.0 if rank == 1 else 60.0, 10))
    row = diagnose_traces(traces).details["collectives"][0]
    assert (row["name"], row["calls_per_step"]) == ("all_reduce", 1.0)
    assert row["bytes_per_step"] == 2 << 20
    # 2 MiB × 2·3/4 in about 100 µs
    assert row["bus_bytes_per_s"] == pytest.approx((2 << 20) * 1.5 / 100e-6, rel=0.2)
    assert row["spread_us"] == pytest.approx(300.0, rel=0.1)


def test_the_account_is_the_mean_of_the_ranks(new_tape: New, read: Read) -> None:
    traces = job(new_tape, read, lambda rank, step: (60.0 + 20 * rank, 10), ranks=2)
    both = diagnose_traces(traces)
    alone = [diagnose_traces([trace]) for trace in traces]
    useful = [sum(e.share for e in d.account if e.part == "useful") for d in (both, *alone)]
    assert useful[0] == pytest.approx((useful[1] + useful[2]) / 2, abs=1e-9)
    assert [r.rank for r in both.device_time] == [0, 1]


def test_two_traces_of_one_rank_are_refused(new_tape: New, read: Read) -> None:
    traces: Sequence[Trace] = job(new_tape, read, lambda rank, step: (60.0, 10), ranks=2)
    with pytest.raises(InputError, match="two traces of rank 0"):
        diagnose_traces([traces[0], traces[0]])


def test_a_trace_without_a_device_event_says_what_to_do(tape: Any, read: Read) -> None:
    with tape.op("aten::mm"):
        tape.pause(10)
    with pytest.raises(InputError, match="no device event"):
        diagnose_traces([read(tape)])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "all_reduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclWorkElem)", "send_recv"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "all_gather"),
        ("_allgather_base", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_f32_RING_LL", "reduce_scatter"),
        ("ncclDevKernel_Generic(x)", "generic"),
        ("nccl", "collective"),
    ],
)
def test_a_collective_is_known_by_its_kernel(text: str, name: str) -> None:
    assert collective_name(text) == name


def test_bus_factors_are_those_of_nccl_tests() -> None:
    assert bus_factor("all_reduce", 8) == 1.75
    assert bus_factor("all_gather", 8) == bus_factor("reduce_scatter", 8) == 0.875
    assert bus_factor("broadcast", 8) == 1.0
