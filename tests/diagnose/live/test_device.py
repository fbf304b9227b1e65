"""A run with a device: the profiler window and the measured steps as one account."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnose.live.records import process, run, steps

from brim.diagnose.live.account import look
from brim.diagnose.live.device import context, on_device
from brim.record.findings import Diagnosis, Entry, Finding, Part, Where, Window, check
from brim.record.run import Run
from brim.record.steps import Footer, Step

H200 = {"index": 0, "name": "NVIDIA H200", "capability": [9, 0], "sm_count": 132, "memory": 1 << 37}
MEMORY = {"reserved_peak": 40 << 30, "total": 140 << 30}


def _run(lines: list[Step], memory: dict[str, int] | None = MEMORY) -> Run:
    footer = Footer(device=H200, memory=memory)
    return run(process(lines, device=H200, footer=footer))


def _traced(findings: list[Finding] | None = None, **shares: float) -> Diagnosis:
    """What the judge of the trace says; keys are ``part__family_cause``."""
    account = [Entry(part="useful", cause="compute", share=1 - sum(shares.values()))]
    for key, share in shares.items():
        part, _, cause = key.partition("__")
        parts: dict[str, Part] = {"idle": "idle", "lost": "busy-lost", "unknown": "unknown"}
        name = cause.replace("_", ".", 1).replace("_", "-")
        account.append(Entry(part=parts[part], cause=name, share=share))
    window = Window(steps=2, wall_s=0.2, ranks=1)
    return Diagnosis(window=window, account=account, findings=findings or [], device="NVIDIA H200")


def _judge(lines: list[Step], traced: Diagnosis, **rest: Any) -> Diagnosis:
    of = _run(lines, **rest)
    return check(on_device(of, look(of, warmup=0), traced))


def _shares(found: Diagnosis) -> dict[str, float]:
    total: dict[str, float] = {}
    for entry in found.account:
        total[entry.cause] = total.get(entry.cause, 0.0) + entry.share
    return total


def _finding(cause: str, share: float) -> Finding:
    return Finding(cause=cause, share=share, gain=(1.01, 1.02), confidence="high",
                   evidence=["from the trace"], where=None, remedies=[])  # fmt: skip


def test_equal_steps_leave_the_traces_account_as_it_is() -> None:
    traced = _traced([_finding("compute.unfused", 0.3)], lost__compute_unfused=0.3)
    found = _judge(steps(50), traced)
    assert _shares(found) == pytest.approx({"compute": 0.7, "compute.unfused": 0.3})
    assert found.findings[0].gain == (1.01, 1.02)  # the replay's own range
    assert found.findings[0].remedies  # worded now
    assert found.window.steps == 50
    assert "profiled for 2 of its steps" in found.window.chosen


def test_what_the_hooks_name_exactly_is_taken_out_of_what_the_trace_could_not_name() -> None:
    found = _judge(steps(50, gc=0.02), _traced(idle__host_launch=0.3))
    assert _shares(found) == pytest.approx({"compute": 0.7, "host.launch": 0.1, "host.gc": 0.2})
    assert [f.cause for f in found.findings] == ["host.gc"]


def test_a_collection_that_hid_behind_the_device_costs_nothing() -> None:
    """The trace has no idle time: the host's pauses did not reach the device."""
    found = _judge(steps(50, gc=0.02), _traced())
    assert _shares(found) == pytest.approx({"compute": 1.0})
    assert found.findings == []


def test_what_makes_some_steps_long_is_added_though_the_window_did_not_see_it() -> None:
    lines = steps(50)
    lines[20].wall, lines[20].save, lines[20].save_n = 5.1, 5.0, 1
    found = _judge(lines, _traced(idle__host_sync=0.2))
    assert _shares(found)["host.periodic"] == pytest.approx(0.5)
    assert _shares(found)["host.sync"] == pytest.approx(0.1)
    assert [f.cause for f in found.findings] == ["host.periodic"]


def test_work_in_every_step_is_not_counted_again_as_rare() -> None:
    found = _judge(steps(50, save=0.02, save_n=1), _traced(idle__host_periodic=0.2))
    assert _shares(found)["host.periodic"] == pytest.approx(0.2)


def test_a_long_first_batch_is_no_part_of_the_window() -> None:
    lines = steps(51)
    lines[0].input_first = lines[0].input_cpu = 20.0
    lines[0].wall = 20.1
    of = _run(lines)
    found = check(on_device(of, look(of, warmup=1), _traced(idle__host_launch=0.1)))
    assert "input.startup" not in _shares(found)
    assert context(look(of, warmup=1)).input_cause is None


def test_reads_of_device_values_are_placed_by_the_line_that_waits_longest() -> None:
    reads = {"read|/a/train.py:30": (1, 0.02), "read|/a/train.py:9": (5, 0.001),
             "collect|/a/train.py:1": (1, 9.0)}  # fmt: skip
    of = _run(steps(50, reads=reads))
    assert context(look(of, warmup=0)).places["host.sync"] == Where(file="/a/train.py", line=30)
    traced = _traced([_finding("host.sync", 0.2)], idle__host_sync=0.2)
    (finding,) = _judge(steps(50, reads=reads), traced).findings
    assert finding.evidence == [
        "from the trace",
        "a device value is read 1 times a step at /a/train.py:30",
        "a device value is read 5 times a step at /a/train.py:9",
    ]


def test_the_loaders_own_records_name_the_wait_that_the_trace_only_sees() -> None:
    of = _run(steps(50, input_wait=0.05, input_main=0.05, input_cpu=0.05, batches=1))
    found = context(look(of, warmup=0))
    assert found.input_cause == "input.main-process"
    assert found.step_s == pytest.approx(0.1)
    assert found.memory_free == pytest.approx(1 - 40 / 140)


@pytest.mark.parametrize("memory", [None, {}])
def test_memory_that_was_not_read_is_absent(memory: dict[str, int] | None) -> None:
    assert context(look(_run(steps(50), memory), warmup=0)).memory_free is None


@pytest.mark.parametrize(
    ("fields", "memory", "named"),
    [
        ({"host_optimizer": 0.03}, MEMORY, True),
        ({"host_optimizer": 0.001}, MEMORY, False),
        ({"host_optimizer": 0.03}, {"reserved_peak": 139, "total": 140}, False),  # no room
        ({"host_optimizer": 0.03}, None, False),  # not known
    ],
)
def test_an_optimizer_on_the_host_is_a_fault_only_where_the_device_has_room(
    fields: dict[str, float], memory: dict[str, int] | None, named: bool
) -> None:
    traced = _traced(idle__transfer_pageable=0.1, idle__host_launch=0.3)
    found = _judge(steps(50, **fields), traced, memory=memory)
    assert ("host.offload" in _shares(found)) is named


@pytest.mark.parametrize(("value", "cause"), [("1", "host.debug-mode"), ("0", "host.launch")])
def test_gaps_between_kernels_are_a_debug_modes_where_each_launch_blocks(
    value: str, cause: str
) -> None:
    footer, blocking = Footer(device=H200, memory=MEMORY), {"CUDA_LAUNCH_BLOCKING": value}
    of = run(process(steps(50), device=H200, footer=footer, env=blocking))
    traced = _traced([_finding("host.launch", 0.4)], idle__host_launch=0.4)
    found = check(on_device(of, look(of, warmup=0), traced))
    assert _shares(found) == pytest.approx({"compute": 0.6, cause: 0.4})
    assert [f.cause for f in found.findings] == [cause]


_PART = st.floats(0, 1)
_FIELDS = st.sampled_from(["gc", "save", "compile", "flush", "collect", "input_wait", "evaluation"])


@given(
    st.lists(_PART, min_size=4, max_size=4),
    st.lists(st.tuples(st.floats(1e-3, 5), st.dictionaries(_FIELDS, st.floats(0, 6))), min_size=1,
             max_size=8),
)  # fmt: skip
def test_the_account_sums_to_one_and_nothing_is_negative(
    parts: list[float], rows: list[tuple[float, dict[str, float]]]
) -> None:
    lines, t = [], 0.0
    for n, (wall, fields) in enumerate(rows):
        t += wall
        lines.append(Step(n=n, t=t, wall=wall, clock="opt0", **fields))  # type: ignore[arg-type]
    whole = math.fsum(parts) + 1e-3
    names = (
        "idle__host_launch",
        "idle__input_workers",
        "lost__compute_padding",
        "unknown__unknown",
    )
    shares = {name: part / whole for name, part in zip(names, parts, strict=True)}
    found = _judge(lines, _traced(**shares))
    assert all(-1e-12 <= e.share <= 1 + 1e-9 for e in found.account)
