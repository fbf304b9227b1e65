"""A tape recorder for synthetic traces: a small host and a small device with one clock.

It simulates what a program does and writes what a profiler would have seen, so a test plants a
fault by writing the program, and knows the truth by writing it without.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from brim.record.kineto import Trace, read_trace

H200 = {
    "id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150109880320, "computeMajor": 9,
    "computeMinor": 0, "numSms": 132,
}  # fmt: skip
V100 = {
    "id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 34089730048, "computeMajor": 7,
    "computeMinor": 0, "numSms": 80,
}  # fmt: skip

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
    "std::array<char*, 3ul> >(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
MAIN, AUTOGRAD = 100, 101


class Tape:
    """All times are µs."""

    def __init__(self, *, start: float = 1_000_000.0, gpu: dict[str, Any] | None = None) -> None:
        self.start = start
        self.now = start
        self.events: list[dict[str, Any]] = []
        self.streams: dict[int, float] = {}
        self.thread = MAIN
        self.correlation = 0
        self.gpu = H200 if gpu is None else gpu
        self.distributed: dict[str, Any] = {}

    # -- the host --

    def _host(self, cat: str, name: str, begin: float, end: float, **args: Any) -> None:
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": MAIN, "tid": self.thread,
             "ts": round(begin, 3), "dur": round(end - begin, 3), "args": args}
        )  # fmt: skip

    @contextmanager
    def span(self, cat: str, name: str, **args: Any) -> Iterator[None]:
        begin, thread = self.now, self.thread
        yield
        now_thread, self.thread = self.thread, thread
        self._host(cat, name, begin, self.now, **args)
        self.thread = now_thread

    def op(self, name: str, *, before: float = 2.0, **args: Any) -> Any:
        """An operation; ``before``: its own time before what it contains."""
        return self._after(before, self.span("cpu_op", name, **args))

    @contextmanager
    def _after(self, before: float, inner: Any) -> Iterator[None]:
        with inner:
            self.now += before
            yield

    def note(self, name: str) -> Any:
        return self.span("user_annotation", name)

    def frame(self, name: str) -> Any:
        return self.span("python_function", name)

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        with self.note(f"ProfilerStep#{number}"):
            yield

    @contextmanager
    def on(self, thread: int) -> Iterator[None]:
        before, self.thread = self.thread, thread
        yield
        self.thread = before

    def pause(self, us: float) -> None:
        """The host does something that no event covers."""
        self.now += us

    def call(self, name: str, us: float) -> None:
        self.correlation += 1
        self._host("cuda_runtime", name, self.now, self.now + us, correlation=self.correlation)
        self.now += us

    # -- the device --

    def _device(
        self, cat: str, name: str, us: float, stream: int, begin: float, **args: Any
    ) -> float:
        start = max(begin, self.streams.get(stream, 0.0))
        self.streams[stream] = start + us
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": stream, "ts": round(start, 3),
             "dur": round(us, 3),
             "args": {"device": 0, "stream": stream, "correlation": self.correlation, **args}}
        )  # fmt: skip
        return start + us

    def kernel(
        self,
        name: str = GEMM,
        us: float = 100.0,
        *,
        host: float = 4.0,
        stream: int = 7,
        **args: Any,
    ) -> None:
        """Launch a kernel: the call takes ``host``, the kernel starts 5 µs after it began."""
        begin = self.now
        self.call("cudaLaunchKernel", host)
        self._device("kernel", name, us, stream, begin + 5.0, **args)

    def run(self, op: str, name: str = GEMM, us: float = 100.0, **args: Any) -> None:
        """One operation with one kernel."""
        with self.op(op, **args):
            self.kernel(name, us)

    def sync(self, name: str = "cudaStreamSynchronize") -> None:
        """Wait for everything on the device."""
        begin = self.now
        self.correlation += 1
        self.now = max(self.now, *self.streams.values(), 0.0) + 3.0
        self._host("cuda_runtime", name, begin, self.now, correlation=self.correlation)

    def copy(self, direction: str, us: float, n_bytes: int, *, blocks: bool = False) -> None:
        """``Memcpy HtoD (Pageable -> Device)`` and its kind; a blocking copy ends with a sync."""
        begin = self.now
        self.call("cudaMemcpyAsync", 5.0)
        self._device("gpu_memcpy", direction, us, 7, begin + 6.0, bytes=n_bytes)
        if blocks:
            self.now += 1.0
            self.sync()

    def item(self) -> None:
        """``tensor.item()``: read a value from the device."""
        with self.op("aten::item", before=1.0), self.op("aten::_local_scalar_dense", before=1.0):
            begin = self.now
            self.correlation += 1
            end = self._device(
                "gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", 1.5, 7, begin + 5.0, bytes=4
            )
            self.now = end + 3.0
            self._host("cuda_runtime", "cudaMemcpyAsync", begin, self.now,
                       correlation=self.correlation)  # fmt: skip
            self.sync()

    # -- the file --

    def document(self) -> dict[str, Any]:
        out: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [self.gpu]}
        if self.distributed:
            out["distributedInfo"] = self.distributed
        out["traceEvents"] = sorted(self.events, key=lambda event: event["ts"])
        return out

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document()))
        return path

    @property
    def length(self) -> float:
        return max([self.now, *self.streams.values()]) - self.start


@pytest.fixture
def tape() -> Tape:
    return Tape()


@pytest.fixture
def new_tape() -> Callable[..., Tape]:
    return Tape


@pytest.fixture
def read(tmp_path: Path) -> Callable[..., Trace]:
    """Write a tape and read it back as a trace."""

    def write_and_read(tape: Tape, name: str = "trace.json") -> Trace:
        return read_trace(tape.write(tmp_path / name))

    return write_and_read
