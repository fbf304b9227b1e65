"""Reading Kineto traces: exact, whatever the schema, as far as the file is whole."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.errors import BrimError, InputError
from brim.record import kineto, kineto_json
from brim.record.kineto import (
    DeviceKind,
    HostKind,
    Trace,
    check_one_job,
    find_traces,
    read_trace,
    read_traces,
)

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def to_file(content: Any, name: str = "trace.json") -> Path:
        path = tmp_path / name
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path

    return to_file


def event(cat: str, name: str, ts: Any, dur: Any, **more: Any) -> dict[str, Any]:
    args = more.pop("args", {})
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": dur,
            "args": args, **more}  # fmt: skip


def kernels(count: int) -> list[dict[str, Any]]:
    return [
        event("kernel", f"k{n % 3}", 1000 + 10 * n, 5, args={"correlation": n, "stream": 7})
        for n in range(count)
    ]


def whole(trace: Trace) -> list[tuple[Any, ...]]:
    """Device events as plain tuples."""
    d = trace.device
    return [
        (trace.names[n], int(s), int(e), DeviceKind(k).name, int(stream), int(c))
        for n, s, e, k, stream, c in zip(
            d.name, d.start, d.end, d.kind, d.stream, d.correlation, strict=True
        )
    ]


# -- columns --


def test_an_event_becomes_whole_nanoseconds(write: Write) -> None:
    args = {"device": 2, "stream": 9, "correlation": 77, "bytes": 640}
    trace = read_trace(
        write({"traceEvents": [
            event("kernel", "gemm", 10.5, 2.25, args=args),
            event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 20, 1, args=args),
            event("gpu_memset", "Memset (Device)", 30, 1, args=args),
        ]})
    )  # fmt: skip
    assert whole(trace) == [
        ("gemm", 10_500, 12_750, "KERNEL", 9, 77),
        ("Memcpy HtoD (Pageable -> Device)", 20_000, 21_000, "MEMCPY", 9, 77),
        ("Memset (Device)", 30_000, 31_000, "MEMSET", 9, 77),
    ]
    assert trace.device.device.tolist() == [2, 2, 2]
    assert trace.device.n_bytes.tolist() == [640, 640, 640]


def test_traces_of_2021_have_capitals_no_stream_and_thread_ids_as_text(write: Write) -> None:
    trace = read_trace(
        write({"schemaVersion": 1, "traceEvents": [
            event("Kernel", "k", 5, 1, pid=1, tid="stream 7"),
            event("Memcpy", "Memcpy HtoD (Pageable -> Device)", 7, 1, pid=1, tid=7),
            event("Runtime", "cudaLaunchKernel", 4, 1, pid=25, tid="25", args={"correlation": 3}),
            event("Operator", "aten::mm", 3, 3, pid=25, tid="25"),
        ]})
    )  # fmt: skip
    assert trace.device.stream.tolist() == [7, 7]
    assert trace.device.device.tolist() == [1, 1]
    assert [HostKind(k) for k in trace.host.kind] == [HostKind.OP, HostKind.RUNTIME]
    assert trace.threads == [(25, 25)]


def test_absolute_nanosecond_times_beyond_float64_are_exact(write: Write) -> None:
    digits = ["1712195495519689.123", "1712195495519689.124", "1712195495519690.5"]
    events = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","ts":{ts},"dur":0.001,"pid":0,"tid":7}}'
        for ts in digits
    )
    trace = read_trace(write(b'{"traceEvents":[' + events.encode() + b"]}"))
    assert trace.device.start.tolist() == [int(Decimal(ts) * 1000) for ts in digits]
    assert (trace.device.end - trace.device.start).tolist() == [1, 1, 1]


@given(st.lists(st.integers(0, (1 << 43) * 1000 - 1), min_size=1, max_size=40))
def test_times_below_2_to_the_43_survive_their_way_through_float64(
    tmp_path_factory: pytest.TempPathFactory, times: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "float.json"
    body = ",".join(
        f'{{"ph":"X","cat":"kernel","name":"k","ts":{ns // 1000}.{ns % 1000:03d},"dur":1}}'
        for ns in times
    )
    path.write_text('{"traceEvents":[' + body + "]}")
    assert sorted(read_trace(path).device.start.tolist()) == sorted(times)


def test_collectives_stacks_sizes_and_memory_are_kept(write: Write) -> None:
    kernel = {"correlation": 1, "Collective name": "allreduce", "In msg nelems": 100,
              "Out msg nelems": 100, "dtype": "BFloat16", "Group size": 8}  # fmt: skip
    op = {"Input Dims": [[2, 3], []], "Input type": ["float", "Scalar"], "Sequence number": 5,
          "Fwd thread id": 1, "Call stack": "a.py(1): f;b.py(2): g"}  # fmt: skip
    trace = read_trace(
        write({"traceEvents": [
            event("kernel", "ncclDevKernel_AllReduce", 1, 1, args=kernel),
            event("cpu_op", "aten::mm", 1, 1, args=op),
            {"ph": "i", "name": "[memory]", "ts": 1, "args":
             {"Total Reserved": 1 << 30, "Device Type": 1, "Device Id": 0}},
        ]})
    )  # fmt: skip
    call = trace.collectives[trace.device.collective[0]]
    assert (call.name, call.elements_in, call.dtype, call.group_size) == (
        "allreduce", 100, "BFloat16", 8,
    )  # fmt: skip
    assert json.loads(trace.dims[trace.host.dims[0]]) == [[2, 3], []]
    assert json.loads(trace.types[trace.host.types[0]]) == ["float", "Scalar"]
    assert trace.stacks[trace.host.stack[0]].startswith("a.py(1)")
    assert (trace.host.sequence[0], trace.host.forward_thread[0]) == (5, 1)
    assert trace.reserved_bytes == {0: 1 << 30}


def test_rank_and_world_come_from_the_trace_or_else_its_name(write: Write) -> None:
    info = {"distributedInfo": {"backend": "nccl", "rank": 3, "world_size": 8}}
    said = read_trace(write({**info, "traceEvents": kernels(1)}, "rank5.json"))
    assert (said.rank, said.world_size, said.rank_known) == (3, 8, True)
    named = read_trace(write({"traceEvents": kernels(1)}, "worker2_step_12.pt.trace.json"))
    assert (named.rank, named.rank_known) == (2, True)
    nothing = read_trace(write({"traceEvents": kernels(1)}, "run.json"))
    assert (nothing.rank, nothing.world_size, nothing.rank_known) == (0, 1, False)


def test_devices_are_known_by_name_capability_and_memory(write: Write) -> None:
    properties = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150, "computeMajor": 9,
                   "computeMinor": 0, "numSms": 132}]  # fmt: skip
    trace = read_trace(write({"deviceProperties": properties, "traceEvents": kernels(1)}))
    assert trace.devices[0].name == "NVIDIA H200"
    assert (trace.devices[0].capability, trace.devices[0].sm_count) == ((9, 0), 132)


def test_an_environment_dump_in_a_trace_goes_nowhere(write: Write) -> None:
    trace = read_trace(write({"metadata": {"HF_TOKEN": "hf_secret"}, "traceEvents": kernels(1)}))
    assert "hf_secret" not in repr(trace)


# -- forms of the JSON --


@pytest.mark.parametrize(
    "text",
    [
        '{"traceEvents": [%s]}',
        '{"note": "\\"traceEvents\\": [", "traceEvents": [%s], "traceName": "x"}',
        "[%s]",
        "[%s",
        '\ufeff{"traceEvents": [%s]}',
        '{"traceEvents": [%s]}\n\0\0',
        '{"traceEvents": [%s], "tail": [{"a": 1},\n {"b": [1, 2]}]}',
    ],
)
def test_all_forms_of_the_document_read_the_same(write: Write, text: str) -> None:
    body = ",\n  ".join(json.dumps(e) for e in kernels(5))
    trace = read_trace(write((text % body).encode()))
    assert len(trace.device) == 5
    assert trace.device.start.tolist() == [1_000_000 + 10_000 * n for n in range(5)]


def test_metadata_behind_the_events_counts(write: Write) -> None:
    body = ",".join(json.dumps(e) for e in kernels(3))
    tail = '"distributedInfo": {"rank": 6, "world_size": 8}'
    assert read_trace(write(f'{{"traceEvents": [{body}], {tail}}}'.encode())).rank == 6


def test_separators_inside_strings_and_nested_lists_do_not_cut_an_event(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kineto_json, "PIECE", 64)
    events = kernels(50)
    for e in events:
        e["name"] = 'lambda {a}, {b} "},\n {" '
        e["args"]["nested"] = [{"a": 1}, {"b": 2}]
    trace = read_trace(write({"traceEvents": events}))
    assert len(trace.device) == 50
    assert set(trace.names) == {events[0]["name"]}


plain_events = st.lists(
    st.fixed_dictionaries(
        {
            "ph": st.sampled_from("XXXsfMi"),
            "cat": st.sampled_from(("kernel", "gpu_memcpy", "cpu_op", "ac2g", "cuda_runtime")),
            "name": st.text(max_size=12),
            "ts": st.integers(0, 10**6),
            "dur": st.integers(0, 1000),
            "pid": st.one_of(st.integers(0, 3), st.text(max_size=3)),
            "tid": st.one_of(st.integers(0, 3), st.text(max_size=3)),
            "args": st.dictionaries(
                st.sampled_from(("correlation", "stream", "device", "bytes", "x")),
                st.integers(-1, 1 << 40),
                max_size=3,
            ),
        }
    ),
    min_size=1,
    max_size=25,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(events=plain_events, piece=st.sampled_from((1, 100, 400, 1 << 20)), indent=st.booleans())
def test_columns_are_those_of_json_loads(
    write: Write, monkeypatch: pytest.MonkeyPatch, events: Any, piece: int, indent: bool
) -> None:
    monkeypatch.setattr(kineto_json, "PIECE", piece)
    events = [*events, *kernels(1)]
    text = json.dumps({"traceEvents": events}, indent=1 if indent else None)
    trace = read_trace(write(text.encode()))
    kinds = {"kernel": "KERNEL", "gpu_memcpy": "MEMCPY"}
    truth = sorted(
        (e["name"], e["ts"] * 1000, (e["ts"] + e["dur"]) * 1000, kinds[e["cat"]])
        for e in json.loads(text)["traceEvents"]
        if e["ph"] == "X" and e["cat"] in kinds
    )
    assert sorted(row[:4] for row in whole(trace)) == truth
    on_host = [e for e in events if e["ph"] == "X" and e["cat"] in ("cpu_op", "cuda_runtime")]
    assert len(trace.host) == len(on_host)


# -- damage --


def test_a_gzip_cut_at_every_tenth_is_read_as_far_as_it_is_whole(tmp_path: Path) -> None:
    data = gzip.compress(json.dumps({"traceEvents": kernels(4000)}).encode())
    path = tmp_path / "cut.json.gz"
    seen = []
    for tenth in range(3, 10):
        path.write_bytes(data[: len(data) * tenth // 10])
        trace = read_trace(path)
        assert trace.truncated
        assert any("ends early" in warning for warning in trace.warnings)
        count = len(trace.device)
        assert trace.device.correlation.tolist() == list(range(count))
        seen.append(count)
    assert seen == sorted(seen) and seen[0] > 500


def test_json_cut_at_any_byte_gives_a_prefix_or_says_that_nothing_is_there(write: Write) -> None:
    text = json.dumps({"schemaVersion": 1, "traceEvents": kernels(8)}).encode()
    for end in range(len(text)):
        try:
            trace = read_trace(write(text[:end]))
        except InputError:
            assert end < 170  # before the first event is whole
            continue
        count = len(trace.device)
        assert trace.device.correlation.tolist() == list(range(count))
        assert trace.truncated == (end < len(text))


def test_a_second_gzip_member_continues_the_first(tmp_path: Path) -> None:
    text = json.dumps({"traceEvents": kernels(100)}).encode()
    path = tmp_path / "members.json.gz"
    path.write_bytes(gzip.compress(text[:999]) + gzip.compress(text[999:]))
    assert len(read_trace(path).device) == 100


def test_damaged_gzip_data_is_named(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(json.dumps({"traceEvents": kernels(20000)}).encode()))
    data[len(data) // 2] ^= 0xFF
    path = tmp_path / "damaged.json.gz"
    path.write_bytes(bytes(data))
    trace = read_trace(path)
    assert 0 < len(trace.device) < 20000 or trace.warnings


def test_nan_inf_bad_utf8_and_lone_backslashes_are_repaired(write: Write) -> None:
    text = json.dumps({"traceEvents": kernels(4)}).replace('"k1"', '"bad\\path"', 1)
    text = text.replace('"stream": 7}', '"stream": 7, "GB/s": nan, "b": -inf, "c": Infinity}')
    trace = read_trace(write(text.encode().replace(b'"k2"', b'"\xff\xfe"')))
    assert len(trace.device) == 4
    assert any("repaired" in warning for warning in trace.warnings)


def test_values_of_unusual_types_count_and_the_impossible_are_left_out(write: Write) -> None:
    events = kernels(3)
    events[0]["ts"], events[0]["args"]["correlation"] = "1000.5", "17"
    events.append(event("kernel", "late", "soon", 1))
    events.append(event("kernel", "huge", 1e300, 1e300, args={"correlation": 1 << 90}))
    events.append(event("kernel", "back", 2000, -5))
    events.append({"ph": "X", "cat": "kernel", "name": "no time"})
    events.append("not an event")  # type: ignore[arg-type]
    trace = read_trace(write({"traceEvents": events}))
    names = [trace.names[n] for n in trace.device.name]
    assert sorted(names) == ["back", "huge", "k0", "k1", "k2"]
    assert trace.device.start.min() == 1_000_500
    assert trace.device.correlation[0] == 17
    assert (trace.device.end >= trace.device.start).all()
    assert any("2 malformed events" in warning for warning in trace.warnings)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "the file is empty"),
        (b"   \n", "the file is empty"),
        (b"hello", "not a trace"),
        (b'{"a": 1}', "not a trace"),
        (b'{"traceEvents": []}', "without any event"),
        (b"\x89PNG\r\n", "not a trace"),
        (b'{"traceEvents": "no"}', "not a trace"),
    ],
)
def test_what_is_no_trace_is_said_so(write: Write, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_trace(write(content))


def test_a_missing_file_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file"):
        read_trace(tmp_path / "nothing.json")


# -- several processes, several files --


@pytest.mark.parametrize("indent", [None, 1])
def test_three_parts_of_a_file_are_the_whole(
    write: Write, monkeypatch: pytest.MonkeyPatch, indent: int | None
) -> None:
    events: list[Any] = []
    for n in range(400):
        events.append(event("kernel", f"k{n % 7}", n, 1, args={"correlation": n}))
        dims = {"Input Dims": [[n % 5]], "Call stack": f"a.py({n % 3}): f"}
        events.append(event("cpu_op", f"op{n % 11}", n, 2, tid=n % 2, args=dims))
    path = write(json.dumps({"traceEvents": events, "traceName": "x"}, indent=indent).encode())
    alone = read_trace(path, processes=1)
    monkeypatch.setattr(kineto, "_WORTH_A_PART", 1000)
    parted = read_trace(path, processes=3)
    assert whole(parted) == whole(alone)
    for column in ("start", "end", "thread"):
        assert (getattr(parted.host, column) == getattr(alone.host, column)).all()
    for column, table in (("name", "names"), ("dims", "dims"), ("stack", "stacks")):
        for one, other in zip(
            getattr(parted.host, column), getattr(alone.host, column), strict=True
        ):
            assert getattr(parted, table)[one] == getattr(alone, table)[other]


def test_a_cut_inside_a_string_is_refuted_and_the_file_read_in_one_go(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = kernels(30)
    for e in events:
        e["name"] = "a }, { b" * 40
    path = write({"traceEvents": events})
    monkeypatch.setattr(kineto, "_WORTH_A_PART", 1000)
    trace = read_trace(path, processes=4)
    assert len(trace.device) == 30 and set(trace.names) == {"a }, { b" * 40}


def test_a_folder_gives_its_traces_and_leaves_other_json_alone(
    write: Write, tmp_path: Path
) -> None:
    for rank in (1, 0):
        write({"distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": kernels(2)},
              f"t{rank}.json.gz")  # fmt: skip
    write({"version": 1, "findings": []}, "findings.json")
    assert [p.name for p in find_traces([tmp_path])] == ["t0.json.gz", "t1.json.gz"]
    assert [trace.rank for trace in read_traces([tmp_path])] == [0, 1]


def test_many_ranks_are_read_in_parallel_and_come_back_in_order(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(3):
        write({"traceEvents": kernels(rank + 1)}, f"rank{rank}.json")
    monkeypatch.setattr(kineto, "_WORTH_A_PROCESS", 0)
    assert [len(t.device) for t in read_traces([tmp_path], processes=2)] == [1, 2, 3]


def test_no_trace_in_a_folder_and_no_path_are_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no trace in this folder"):
        find_traces([tmp_path])
    with pytest.raises(InputError, match="no such file or folder"):
        find_traces([tmp_path / "x"])
    with pytest.raises(InputError, match="no trace was named"):
        find_traces([])
    with pytest.raises(BrimError, match="no trace"):
        check_one_job([])


def test_two_traces_of_one_rank_and_traces_of_two_jobs_are_refused(write: Write) -> None:
    def of(rank: int, world: int, name: str) -> Trace:
        info = {"rank": rank, "world_size": world}
        return read_trace(write({"distributedInfo": info, "traceEvents": kernels(1)}, name))

    with pytest.raises(InputError, match=r"two traces of rank 0: a\.json and b\.json"):
        check_one_job([of(0, 2, "a.json"), of(0, 2, "b.json")])
    with pytest.raises(InputError, match=r"different jobs: a\.json is of 2 ranks"):
        check_one_job([of(0, 2, "a.json"), of(1, 4, "b.json")])


# -- public traces --


def test_every_public_trace_has_the_events_that_a_strict_parser_counts(shared: Path) -> None:
    expected = json.loads((shared / "traces" / "expected.json").read_text())["files"]
    for name, facts in expected.items():
        trace = read_trace(shared / "traces" / name)
        kinds = trace.device.kind
        assert len(trace.device) == facts["gpu_events"], name
        assert int((kinds == DeviceKind.KERNEL).sum()) == facts["kernels"], name
        short = (trace.device.end - trace.device.start < 10_000) & (kinds == DeviceKind.KERNEL)
        assert int(short.sum()) == facts["kernels_under_10us"], name
        assert not trace.warnings, name
        named = np.array(trace.names, object)[trace.device.name]
        pageable = sum("HtoD (Pageable" in n for n in named)
        assert pageable == facts["h2d_pageable"], name
