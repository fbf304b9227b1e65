"""The vectorised engine against a plain, slow loop over events, on random traces.

The reference shares no code with the engine: it walks over every moment of the window (whole µs)
and asks each event whether it covers it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.diagnose.trace import diagnose_traces
from brim.diagnose.trace.blame import blame
from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.host import HostSide
from brim.record.kineto import read_trace

BASE = 5_000_000
MAIN, AUTOGRAD = 1, 2

_KERNELS = ("gemm", "ncclDevKernel_AllReduce", "elementwise")
_SPANS = (
    ("cpu_op", "aten::mm"),
    ("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
    ("user_annotation", "entire_frame_compile"),
    ("cuda_runtime", "cudaMalloc"),
    ("cuda_runtime", "cudaStreamSynchronize"),
    ("cuda_runtime", "cudaStreamIsCapturing"),
    ("python_function", "torch/serialization.py(1): save"),
)

device_events = st.lists(
    st.tuples(
        st.sampled_from(("kernel", "gpu_memcpy", "gpu_memset")),
        st.sampled_from(_KERNELS),
        st.integers(0, 120),  # start
        st.integers(0, 25),  # duration
        st.integers(1, 3),  # stream
        st.one_of(st.none(), st.tuples(st.integers(0, 120), st.integers(1, 8))),  # its launch
        st.sampled_from((MAIN, AUTOGRAD)),
    ),
    min_size=1,
    max_size=14,
)
host_spans = st.lists(
    st.tuples(
        st.sampled_from(_SPANS), st.integers(0, 130), st.integers(1, 60),
        st.sampled_from((MAIN, AUTOGRAD)),
    ),
    max_size=10,
)  # fmt: skip


def document(device: Any, spans: Any, step: int | None) -> dict[str, Any]:
    """The trace; a launch never starts after its device event."""
    events = []
    for number, (cat, name, start, duration, stream, launch, thread) in enumerate(device):
        label = name if cat == "kernel" else "Memcpy DtoD (Device -> Device)"
        args = {"device": 0, "stream": stream, "correlation": 1000 + number}
        events.append(event(cat, label, 0, stream, start, duration, args))
        if launch is not None:
            begin = min(launch[0], start)
            args = {"correlation": 1000 + number}
            events.append(
                event("cuda_runtime", "cudaLaunchKernel", 9, thread, begin, launch[1], args)
            )
    for (cat, name), start, duration, thread in spans:
        events.append(event(cat, name, 9, thread, start, duration, {}))
    if step is not None:
        events.append(event("user_annotation", "ProfilerStep#1", 9, MAIN, step, 40, {}))
    return {"schemaVersion": 1, "traceEvents": events}


def event(cat: str, name: str, pid: int, tid: int, ts: int, dur: int, args: Any) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid,
            "ts": BASE + ts, "dur": dur, "args": args}  # fmt: skip


def covered(events: list[dict[str, Any]], moment: int) -> bool:
    return any(e["ts"] <= moment < e["ts"] + e["dur"] for e in events)


def slow_times(events: list[dict[str, Any]], low: int, high: int) -> dict[str, int]:
    """µs of each kind, moment by moment."""
    kernels = [e for e in events if e["cat"] == "kernel"]
    comm = [e for e in kernels if "nccl" in e["name"]]
    compute = [e for e in kernels if "nccl" not in e["name"]]
    copies = [e for e in events if e["cat"] in ("gpu_memcpy", "gpu_memset")]
    out = dict.fromkeys(("window", "busy", "idle", "compute", "comm", "copy"), 0)
    for moment in range(low, high):
        kinds = [covered(kind, moment) for kind in (compute, comm, copies)]
        out["window"] += 1
        out["busy" if any(kinds) else "idle"] += 1
        out["compute"] += kinds[0]
        out["comm"] += kinds[1] and not kinds[0]
        out["copy"] += kinds[2] and not kinds[0] and not kinds[1]
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("random")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(device=device_events, spans=host_spans, step=st.one_of(st.none(), st.integers(0, 100)))
def test_device_times_are_those_of_a_walk_over_every_moment(
    folder: Path, device: Any, spans: Any, step: int | None
) -> None:
    text = document(device, spans, step)
    path = folder / "trace.json"
    path.write_text(json.dumps(text))
    found = DeviceSide(read_trace(path))
    on_device = [
        e for e in text["traceEvents"] if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")
    ]
    first = min(e["ts"] for e in on_device)
    last = max(e["ts"] + e["dur"] for e in on_device)
    windows = [(found.span, (first, last))]
    if step is not None:
        windows.append((found.step_span, (BASE + step, max(last, BASE + step + 40))))
    for got, (low, high) in windows:
        assert got == (low * 1000, high * 1000)
        time, truth = found.lanes.time(*got), slow_times(on_device, low, high)
        assert (time.window_us, time.busy_us, time.idle_us) == (
            truth["window"], truth["busy"], truth["idle"]
        )  # fmt: skip
        assert (time.compute_us, time.exposed_comm_us, time.exposed_copy_us) == (
            truth["compute"], truth["comm"], truth["copy"]
        )  # fmt: skip


# What a span means, and in which order meanings win; written down again on purpose.
_MEANING = {
    "entire_frame_compile": "host.recompile",
    "torch/serialization.py(1): save": "host.periodic",
    "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": "input.main-process",
    "cudaStreamSynchronize": "host.sync",
    "cudaMalloc": "memory",
}
_PRECEDENCE = list(_MEANING.values())


def slow_cause(text: dict[str, Any], moment: int, thread: int, threads: list[int]) -> str:
    """What one thread is seen doing in one µs; what the others do where it does nothing."""
    for who in ([thread], [t for t in threads if t != thread]):
        here = [
            e for e in text["traceEvents"]
            if e["pid"] == 9 and e["tid"] in who and e["ts"] <= moment < e["ts"] + e["dur"]
            and not e["name"].startswith("ProfilerStep")
        ]  # fmt: skip
        named = [_MEANING[e["name"]] for e in here if e["name"] in _MEANING]
        if named:
            return min(named, key=_PRECEDENCE.index)
        if here:
            return "ordinary"
    return "ordinary"  # untraced, but shorter than a millisecond


def slow_blame(text: dict[str, Any]) -> dict[str, int]:
    """Cause → idle µs, without the charging of waits (the traces here have no debts: see below)."""
    events = text["traceEvents"]
    on_device = [e for e in events if e["pid"] == 0]
    launches = {e["args"]["correlation"]: e for e in events if e["name"] == "cudaLaunchKernel"}
    linked = sorted(launches.values(), key=lambda e: (e["ts"], -e["dur"]))
    tids = [e["tid"] for e in linked]
    feeding = sorted(set(tids), key=lambda t: (-tids.count(t), tids.index(t)))
    loops = [
        min((e for e in events if e["name"].startswith(start)),
            key=lambda e: (e["ts"], -e["dur"]), default=None)
        for start in ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.step")
    ]  # fmt: skip
    loop = next((e["tid"] for e in loops if e is not None), None)
    threads = feeding + ([loop] if loop is not None and loop not in feeding else [])
    low = min(e["ts"] for e in on_device)
    high = max(e["ts"] + e["dur"] for e in on_device)
    out: dict[str, int] = {}
    moment = low
    while moment < high:
        if covered(on_device, moment):
            moment += 1
            continue
        end = moment
        while not covered(on_device, end):
            end += 1
        for cause in _explain(text, moment, end, on_device, launches, threads):
            out[cause] = out.get(cause, 0) + 1
        moment = end
    return out


def _explain(
    text: Any, start: int, end: int, on_device: Any, launches: Any, threads: list[int]
) -> list[str]:
    """The cause of each µs of one gap."""
    enders = [e for e in on_device if e["ts"] == end]
    ender = max(enders, key=lambda e: e["dur"])
    launch = launches.get(ender["args"]["correlation"])
    if launch is None and not threads:
        return ["unknown"] * (end - start)
    thread = threads[0] if launch is None else launch["tid"]
    until = end if launch is None else min(max(launch["ts"] + launch["dur"], start), end)
    seen = [slow_cause(text, moment, thread, threads) for moment in range(start, until)]
    late = [slow_cause(text, moment, thread, threads) for moment in range(until, end)]
    blocked = "host.sync" in seen or "host.sync" in late
    rest = "unknown" if blocked or end - until > 30 else "ordinary"
    return seen + [cause if cause == "host.sync" else rest for cause in late]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(device=device_events, spans=host_spans)
def test_idle_causes_are_those_of_a_walk_over_every_moment(
    folder: Path, device: Any, spans: Any
) -> None:
    # one ender per gap, so that both pick the same launch
    starts = [d[2] for d in device]
    device = [d for n, d in enumerate(device) if starts.index(d[2]) == n and d[3] > 0]
    if not device:
        return
    text = document(device, spans, None)
    path = folder / "blame.json"
    path.write_text(json.dumps(text))
    trace = read_trace(path)
    found, host = DeviceSide(trace), HostSide(trace)
    got = blame(found, host, *found.span)
    truth = slow_blame(text)
    # waits are charged with ordinary and with unexplained idleness, and with nothing else
    free = got.total("host.launch") + got.total("unknown")
    assert sum(got.total(cause) for cause in got.by) == sum(truth.values()) * 1000
    chargeable = (truth.get("ordinary", 0) + truth.get("unknown", 0)) * 1000
    assert free + sum(got.charged.values()) == chargeable
    assert got.total("unknown") <= truth.get("unknown", 0) * 1000
    for cause in _PRECEDENCE:
        extra = sum(got.charged.values()) if cause == "host.sync" else 0
        assert got.total(cause) - extra == truth.get(cause, 0) * 1000, cause


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(device=device_events, spans=host_spans, step=st.one_of(st.none(), st.integers(0, 100)))
def test_every_account_of_a_random_trace_sums_to_one(
    folder: Path, device: Any, spans: Any, step: int | None
) -> None:
    path = folder / "whole.json"
    path.write_text(json.dumps(document(device, spans, step)))
    diagnosis = diagnose_traces([read_trace(path)])  # checks the sum itself
    time = diagnosis.device_time[0]
    window = time.step_window or time.kernel_span
    idle = sum(e.share for e in diagnosis.account if e.part in ("idle", "unknown"))
    if window.window_us:
        assert idle == pytest.approx(window.idle_us / window.window_us, abs=1e-9)
