"""Nsight Systems exports give the same columns as a Kineto trace of the same run."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from brim.diagnose.trace import diagnose_traces
from brim.errors import InputError
from brim.record.kineto import DeviceKind, HostKind, find_traces, read_trace

TID = 4242 << 24 | 77
STRINGS = {
    1: "nvjet_sm90_tst_128x256", 2: "cudaLaunchKernel_v7000", 3: "cudaMemcpyAsync_v3020",
    4: "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 5: "cudaMemsetAsync_v3020",
}  # fmt: skip


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """Six steps: 900 µs of loading, one copy from pageable memory, 20 kernels of 50 µs."""
    path = tmp_path / "report_rank3.sqlite"
    db = sqlite3.connect(path)
    db.executescript(
        """
        CREATE TABLE StringIds (id INTEGER, value TEXT);
        CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,
            streamId INTEGER, correlationId INTEGER, demangledName INTEGER, shortName INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER, end INTEGER, deviceId INTEGER,
            streamId INTEGER, correlationId INTEGER, bytes INTEGER, copyKind INTEGER,
            srcKind INTEGER, dstKind INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_MEMSET (start INTEGER, end INTEGER, deviceId INTEGER,
            streamId INTEGER, correlationId INTEGER, bytes INTEGER);
        CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
            correlationId INTEGER, nameId INTEGER);
        CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,
            textId INTEGER, globalTid INTEGER);
        CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, totalMemory INTEGER, smCount INTEGER,
            computeMajor INTEGER, computeMinor INTEGER);
        INSERT INTO TARGET_INFO_GPU VALUES (0, 'NVIDIA H200', 150109880320, 132, 9, 0);
        """
    )
    db.executemany("INSERT INTO StringIds VALUES (?, ?)", STRINGS.items())
    now, device, ids = 1_000_000_001, 0, 0
    for step in range(6):
        begin = now = max(now, device)
        loader = (now, now + 900_000, TID)
        db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, 4, ?)", loader)
        now += 900_000
        for kernel in range(21):
            ids += 1
            name = 3 if kernel == 0 else 2
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, ?, ?, ?)",
                       (now, now + 5_000, TID, ids, name))  # fmt: skip
            start = max(now + 6_000, device)
            device = start + 50_000
            row = (start, device, 0, 7, ids)
            if kernel == 0:
                db.execute(
                    "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?,?,?,?,?, 640, 1, 0, 2)", row
                )
            else:
                db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?,?,?,?,?, 1, 1)", row)
            now += 6_000
        text = f"ProfilerStep#{step}"
        db.execute("INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, ?, NULL, ?)", (begin, now, text, TID))
    db.commit()
    db.close()
    return path


def test_an_export_is_read_to_the_nanosecond(export: Path) -> None:
    trace = read_trace(export)
    assert (trace.rank, trace.rank_known) == (3, True)
    assert trace.devices[0].name == "NVIDIA H200"
    assert int((trace.device.kind == DeviceKind.KERNEL).sum()) == 120
    assert int(trace.device.start[0]) == 1_000_000_001 + 900_000 + 6_000
    assert {trace.names[n] for n in trace.device.name} == {
        "nvjet_sm90_tst_128x256", "Memcpy HtoD (Pageable -> Device)",
    }  # fmt: skip
    calls = trace.host.name[trace.host.kind == HostKind.RUNTIME]
    assert {trace.names[n] for n in calls} == {"cudaLaunchKernel", "cudaMemcpyAsync"}
    assert trace.threads == [(4242, 77)]


def test_the_loader_of_an_export_is_found(export: Path) -> None:
    diagnosis = diagnose_traces([read_trace(export)])
    assert diagnosis.findings[0].cause == "input.main-process"
    assert diagnosis.window.steps == 6
    assert any("no operations" in note for note in diagnosis.notes)


def test_a_folder_lists_exports_beside_traces(export: Path) -> None:
    assert find_traces([export.parent]) == [export]


def test_another_database_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    db = sqlite3.connect(path)
    db.execute("CREATE TABLE users (name TEXT)")
    db.commit()
    db.close()
    with pytest.raises(InputError, match="no CUDA activity"):
        read_trace(path)
    path.write_bytes(path.read_bytes()[:50] + b"x" * 5000)
    with pytest.raises(InputError, match="not an Nsight Systems export"):
        read_trace(path)
