"""Whatever a findings.json of the right shape says, every report of it can be made."""

from __future__ import annotations

import io
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from brim.diagnose.causes import CAUSES
from brim.diagnose.compare import compare
from brim.diagnose.trace import tables
from brim.record.findings import (
    DeviceTime,
    Diagnosis,
    Entry,
    Finding,
    RankDeviceTime,
    Remedy,
    Where,
    Window,
)
from brim.report import compare as comparison
from brim.report import html, terminal

_share = st.floats(0, 1)
_us = st.floats(0, 1e12)
_text = st.text(max_size=30)
_cause = st.sampled_from([*CAUSES, "compute", "unknown", "later.cause"]) | _text
_rank = st.integers(0, 20)


def _maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


_remedy = st.builds(
    Remedy,
    id=_text,
    summary=_text,
    lossless=st.booleans(),
    settings=st.dictionaries(st.sampled_from(["torch", "hf-trainer"]) | _text, _text, max_size=3),
    memory=_text,
)
_finding = st.builds(
    Finding,
    cause=_cause,
    share=_share,
    gain=st.tuples(st.floats(), st.floats()),
    confidence=st.sampled_from(["high", "medium", "low"]),
    evidence=st.lists(_text, max_size=3),
    where=_maybe(st.builds(Where, file=_text, line=st.integers(), function=_text)),
    remedies=st.lists(_remedy, max_size=2),
)
_entry = st.builds(
    Entry,
    part=st.sampled_from(["useful", "busy-lost", "busy-not-computing", "idle", "unknown"]),
    cause=_cause,
    share=_share,
)
_device_time = st.builds(
    DeviceTime,
    **dict.fromkeys(
        ["window_us", "busy_us", "idle_us", "compute_us", "exposed_comm_us", "exposed_copy_us"], _us
    ),
)


def _rows(row: type[Any], **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """A table; what is not given comes from the types."""
    return st.lists(st.builds(row, **known).map(lambda r: tables.rows([r])[0]), max_size=4)


_details = st.fixed_dictionaries(
    {},
    optional={
        "kernels": _rows(
            tables.KernelRow, calls=st.integers(0, 10**9), time_us=_us, share=_share,
            flops_per_s=_maybe(_us), bytes_per_s=_maybe(_us), attainable=_maybe(st.floats(0, 2)),
        ),
        "kernel_kinds": _rows(tables.KindRow, time_us=_us, share=_share, mean_us=_us),
        "ranks": _rows(
            tables.RankRow, rank=_rank, window_us=_us, compute=_share, exposed_comm=_share,
            exposed_copy=_share, idle=_share, idle_by_cause=st.dictionaries(_cause, _share),
            comm_wait_us=_maybe(_us), late_us=_maybe(_us), late_calls=_maybe(st.integers(0)),
        ),
        "collectives": _rows(
            tables.CollRow, calls_per_step=_us, bytes_per_step=_maybe(_us), time_us=_us,
            exposed_us=_us, spread_us=_maybe(_us), bus_bytes_per_s=_maybe(_us),
        ),
        "steps": _rows(
            tables.StepRow, rank=_rank, start_us=_us, wall_us=_us, compute_us=_us,
            exposed_comm_us=_us, exposed_copy_us=_us, idle_us=_us,
            idle_by_cause=st.dictionaries(_cause, _us),
        ),
        "timeline": _rows(tables.Segment, rank=_rank, start_us=_us, end_us=_us),
        "modules": _rows(
            tables.ModuleRow, device_us=_us, share=_share, kernels=st.integers(0),
            kinds=st.dictionaries(_text, _us),
        ),
        "of_a_later_version": st.none(),
    },
)  # fmt: skip

_diagnosis = st.builds(
    Diagnosis,
    verdict=_text,
    window=st.builds(
        Window,
        steps=st.integers(0, 10**6),
        wall_s=st.floats(0, 1e9),
        ranks=st.integers(0, 10**4),
        chosen=_text,
    ),
    account=st.lists(_entry, max_size=6),
    findings=st.lists(_finding, max_size=3),
    device_time=st.lists(
        st.builds(
            RankDeviceTime, rank=_rank, kernel_span=_device_time, step_window=_maybe(_device_time)
        ),
        max_size=2,
    ),
    device=_text,
    frameworks=st.lists(st.sampled_from(["hf-trainer", "torch"]) | _text, max_size=2),
    metrics=st.dictionaries(
        st.sampled_from(["step_s", "mfu", "samples_per_s", "overhead"]) | _text,
        st.floats(),
        max_size=4,
    ),
    notes=st.lists(_text, max_size=2),
    details=_details,
)
_often = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@_often
@given(_diagnosis, st.integers(20, 130), st.booleans())
def test_any_diagnosis_can_be_printed_within_the_width(
    diagnosis: Diagnosis, width: int, every: bool
) -> None:
    out = io.StringIO()
    terminal.render(diagnosis, Console(file=out, width=width), all_frameworks=every)
    assert all(cell_len(line) <= width for line in out.getvalue().split("\n"))


@_often
@given(_diagnosis)
def test_any_diagnosis_becomes_a_page(diagnosis: Diagnosis) -> None:
    assert html.page(diagnosis).rstrip().endswith("</html>")


@_often
@given(_diagnosis, _diagnosis)
def test_any_two_diagnoses_can_be_compared(a: Diagnosis, b: Diagnosis) -> None:
    result = compare(a, b)
    out = io.StringIO()
    comparison.render(result, Console(file=out, width=80))
    assert all(cell_len(line) <= 80 for line in out.getvalue().split("\n"))
    assert "</html>" in comparison.page(result)
