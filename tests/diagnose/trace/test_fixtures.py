"""Small traces of a real GPU that come with the tests, one per planted fault.

The file's name says the truth: ``host.sync.json.gz`` must give ``host.sync`` first, and
``healthy.json.gz`` nothing; what stands after two dashes is free (``healthy--packed.json.gz``).
"""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from brim.diagnose.trace import diagnose_traces
from brim.record.kineto import read_trace

FIXTURES = sorted((Path(__file__).parents[2] / "fixtures" / "traces").glob("*.json.gz"))


def sweep(events: list[dict[str, Any]]) -> dict[str, int]:
    """ns with compute, with communication alone, with copies alone; one edge after the other.

    ``ts`` and ``dur`` are µs as integers or decimals: a float would lose nanoseconds.
    """
    edges: list[tuple[int, int, int]] = []
    for e in events:
        kind = 2 if e["cat"] != "kernel" else int("nccl" in e["name"].lower())
        begin = round(e["ts"] * 1000)
        edges += [(begin, 1, kind), (begin + round(e["dur"] * 1000), -1, kind)]
    edges.sort()
    out, running, before = dict.fromkeys(("compute", "comm", "copy"), 0), [0, 0, 0], edges[0][0]
    for time, step, kind in edges:
        for name, count in zip(out, running, strict=True):
            if count:
                out[name] += time - before
                break
        running[kind] += step
        before = time
    return out


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_a_recorded_fault_is_named_and_its_times_are_exact(path: Path) -> None:
    diagnosis = diagnose_traces([read_trace(path)])
    truth = path.name.removesuffix(".json.gz").partition("--")[0]
    found = [finding.cause for finding in diagnosis.findings]
    assert found[:1] == ([] if truth == "healthy" else [truth])
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    device = [
        e for e in document["traceEvents"]
        if e.get("ph") == "X" and e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")
    ]  # fmt: skip
    span, times = diagnosis.device_time[0].kernel_span, sweep(device)
    assert span.compute_us == pytest.approx(times["compute"] / 1e3, abs=0.001)
    assert span.exposed_comm_us == pytest.approx(times["comm"] / 1e3, abs=0.001)
    assert span.exposed_copy_us == pytest.approx(times["copy"] / 1e3, abs=0.001)


def test_the_sweep_itself_counts_each_moment_once() -> None:
    events = [
        {"cat": "kernel", "name": "gemm", "ts": 0, "dur": 10},
        {"cat": "kernel", "name": "ncclDevKernel", "ts": 5, "dur": 10},
        {"cat": "gpu_memcpy", "name": "Memcpy", "ts": 12, "dur": 10},
    ]
    assert sweep(events) == {"compute": 10_000, "comm": 5_000, "copy": 7_000}
