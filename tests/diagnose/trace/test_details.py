"""The tables of the long report."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.diagnose.trace import diagnose_traces, tables
from brim.record import findings
from brim.record.kineto import Trace, read_trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, x>"
ROWS = {
    "kernels": tables.KernelRow, "kernel_kinds": tables.KindRow, "ranks": tables.RankRow,
    "collectives": tables.CollRow, "steps": tables.StepRow, "timeline": tables.Segment,
    "modules": tables.ModuleRow,
}  # fmt: skip

Read = Callable[..., Trace]


@pytest.fixture
def details(tape: Any, read: Read) -> dict[str, Any]:
    dims = {"Input Dims": [[4096, 4096], [4096, 4096]], "Input type": ["c10::BFloat16"] * 2}
    for number in range(4):
        with tape.step(number), tape.frame("train.py(3): main"):
            with tape.note("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"):
                tape.pause(500)
            with tape.frame("nn.Module: Block_0"):
                with tape.frame("nn.Module: Linear_7"):
                    for _ in range(3):
                        tape.run("aten::mm", GEMM, 200.0, **{**dims, "Sequence number": number})
                tape.run("aten::add", ADD, 50.0)
            tape.run("record_param_comms", "ncclDevKernel_AllReduce_x", 80.0)
            with tape.on(101):
                node = "autograd::engine::evaluate_function: MmBackward0"
                with tape.op(node, **{"Sequence number": number, "Fwd thread id": 1}):
                    tape.run("aten::mm", GEMM, 400.0)
            tape.sync()
    return diagnose_traces([read(tape)]).details


def test_every_row_is_of_its_documented_type(details: dict[str, Any]) -> None:
    assert set(details) == set(ROWS)
    for name, table in details.items():
        assert table, name
        for row in table:
            msgspec.convert(row, ROWS[name])
    json.dumps(details)


def test_the_longest_kernel_knows_its_roof(details: dict[str, Any]) -> None:
    first = details["kernels"][0]
    assert (first["kind"], first["dtype"], first["calls"]) == ("matmul", "bf16", 16)
    assert first["time_us"] == pytest.approx(4 * (3 * 200 + 400))
    flops = 2 * 4096**3
    assert first["flops_per_s"] == pytest.approx(flops / 200e-6, rel=1e-3)
    assert first["attainable"] == pytest.approx(flops / 200e-6 / 989e12, rel=0.02)
    assert first["bound"] == "compute" and first["op"].startswith("aten::mm")


def test_kinds_fill_the_device_time(details: dict[str, Any]) -> None:
    times = {row["kind"]: row["time_us"] for row in details["kernel_kinds"]}
    assert times == pytest.approx({"matmul": 4000.0, "elementwise": 200.0, "comm": 320.0})


def test_backward_kernels_go_to_the_module_of_their_forward(details: dict[str, Any]) -> None:
    rows = {row["module"]: row for row in details["modules"]}
    assert rows["Linear"]["device_us"] == pytest.approx(4 * (600 + 400))
    assert rows["Block"]["kinds"] == {"elementwise": 200.0}


def test_steps_fill_the_window_and_name_their_idle_time(details: dict[str, Any]) -> None:
    steps = details["steps"]
    assert [row["name"] for row in steps] == [f"ProfilerStep#{n}" for n in range(4)]
    for row in steps:
        assert sum(row["idle_by_cause"].values()) == pytest.approx(row["idle_us"], abs=0.01)
        parts = ("compute_us", "exposed_comm_us", "exposed_copy_us", "idle_us")
        assert sum(row[part] for part in parts) == pytest.approx(row["wall_us"], abs=0.01)
        assert max(row["idle_by_cause"], key=row["idle_by_cause"].get) == "input.main-process"


def test_the_timelines_lanes_do_not_overlap(details: dict[str, Any]) -> None:
    for lane in ("device", "idle", "host"):
        rows = [row for row in details["timeline"] if row["lane"] == lane]
        assert rows
        for one, other in pairwise(rows):
            assert one["end_us"] <= other["start_us"] + 0.001
    idle = {row["label"] for row in details["timeline"] if row["lane"] == "idle"}
    assert "input.main-process" in idle
    assert {"input", "op"} <= {r["label"] for r in details["timeline"] if r["lane"] == "host"}


def test_a_long_trace_gives_a_bounded_timeline(tape: Any, read: Read) -> None:
    for _ in range(5000):
        tape.run("aten::add", ADD, 2.0, before=8.0)
    rows = diagnose_traces([read(tape)]).details["timeline"]
    assert 3 <= len(rows) <= tables.MAX_SEGMENTS


def test_hostile_names_stay_data(tape: Any, read: Read, tmp_path: Any) -> None:
    evil = "</script><script>alert(1)</script>\x1b[31m" + "x" * 5000
    for number in range(3):
        with tape.step(number):
            for _ in range(20):
                tape.run(evil, evil, 100.0)
    diagnosis = diagnose_traces([read(tape)])
    path = tmp_path / "findings.json"
    findings.write(path, diagnosis)
    name = findings.read(path).details["kernels"][0]["name"]
    assert len(name) <= 200 and "\x1b" not in name


def test_the_timelines_idle_lane_shows_no_more_than_the_device_was_idle() -> None:
    path = Path(__file__).parents[2] / "fixtures" / "traces" / "host.launch--h200.json.gz"
    diagnosis = diagnose_traces([read_trace(path)])
    rows = diagnosis.details["timeline"]
    shown = sum(r["end_us"] - r["start_us"] for r in rows if r["lane"] == "idle")
    window = diagnosis.device_time[0].step_window
    assert window is not None
    assert 0.5 * window.idle_us < shown <= window.idle_us
    assert len(rows) <= 4000
