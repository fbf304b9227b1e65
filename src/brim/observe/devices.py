"""Samples devices and host beside a job, and writes ``devices.host.jsonl``.

The sampler lives in brim's own process, never in the job's.  Its promises: it opens no CUDA
context; it raises nothing into the job; it takes a bounded share of one core (the period grows
when a sample is dear) and a bounded file (the period doubles each time half of what is left of
the limit is used up).
"""

from __future__ import annotations

import contextlib
import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import msgspec

from brim.hardware.cores import Cores, usable_cores
from brim.observe.backend import Backend, Moment, Unavailable
from brim.observe.host import FIELDS as HOST_FIELDS
from brim.observe.host import HostProbe
from brim.observe.processes import JobTree
from brim.record.devices import (
    FILE,
    About,
    Device,
    DeviceProcess,
    DeviceSample,
    HostSample,
    Line,
    Meaning,
    Note,
    encode,
)

PERIOD_S = 0.5
CPU_SHARE = 0.01
"""Of one core: what sampling may cost."""
MAX_FILE_BYTES = 64 << 20
LONGEST_PERIOD_S = 60.0

_HOST_PERIOD_S = 1.0
_TREE_PERIOD_S = 2.0


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one tick saw."""

    t: float
    interval_s: float
    devices: list[DeviceSample]
    host: HostSample | None
    """None between two host samples, which are taken once a second at most."""


def open_backend(candidates: list[Backend] | None = None) -> tuple[Backend | None, str]:
    """The first backend that has devices, or None and every reason why there is none."""
    reasons = []
    for backend in _backends() if candidates is None else candidates:
        try:
            backend.open()
        except Unavailable as error:
            reasons.append(str(error))
            continue
        return backend, ""
    return None, "; ".join(reasons)


class Probe:
    """Takes samples; no thread, no file."""

    def __init__(
        self,
        *,
        job: int | None = None,
        with_root: bool = False,
        backend: Backend | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``job``: the process whose descendants are the job.  ``backend``: None looks for one."""
        self.backend, self.why_none = open_backend(None if backend is None else [backend])
        self.tree = JobTree(job, with_root=with_root)
        self._host = HostProbe(self.tree)
        self._clock = clock
        self._tick = 0
        self._names: dict[int, str] = {}
        self._said: About | None = None
        self._last = self._last_host = self._last_tree = clock()
        self.tree.refresh()
        self._host.sample(t=time.time(), mono=self._last, interval_s=0.0)
        self.cores: Cores = usable_cores()

    def devices(self) -> list[Device]:
        return self.backend.devices() if self.backend is not None else []

    def about(self, period_s: float) -> About:
        """What the samples mean; complete once a first sample has been taken."""
        of_devices = self.backend.meanings if self.backend is not None else {}
        return About(
            t=time.time(),
            host=platform.node(),
            backend=self.backend.name if self.backend is not None else "none",
            why_none=self.why_none,
            driver=self.backend.driver if self.backend is not None else "",
            period_s=period_s,
            devices=self.devices(),
            fields=_prefixed("device", of_devices, period_s)
            | _prefixed("host", HOST_FIELDS, max(period_s, _HOST_PERIOD_S)),
            usable_cores=self.cores.usable,
            machine_cores=self.cores.machine,
            why_cores=list(self.cores.reasons),
        )

    def about_if_new(self, period_s: float) -> About | None:
        """What the samples mean, where it is not what the last call said: reasons for absence turn
        up with the first samples, and periods change with what readings cost."""
        about = self.about(period_s)
        if self._said is not None and _says_the_same(self._said, about):
            return None
        self._said = about
        return about

    def sample(self) -> Snapshot:
        """The interval since the last call (since creation, the first time)."""
        mono, t = self._clock(), time.time()
        interval_s = round(mono - self._last, 6)
        self._last = mono
        if mono - self._last_tree >= _TREE_PERIOD_S or self._tick == 0:
            self._last_tree = mono
            self.tree.refresh()
        moment = Moment(t=t, mono=mono, interval_s=interval_s, tick=self._tick, owner=self._process)
        self._tick += 1
        devices = self.backend.sample(moment) if self.backend is not None else []
        return Snapshot(t=t, interval_s=interval_s, devices=devices, host=self._host_at(t, mono))

    def close(self) -> None:
        if self.backend is not None:
            self.backend.close()

    def _host_at(self, t: float, mono: float) -> HostSample | None:
        interval_s = round(mono - self._last_host, 6)
        if interval_s < _HOST_PERIOD_S * 0.9:
            return None
        self._last_host = mono
        return self._host.sample(t=t, mono=mono, interval_s=interval_s)

    def _process(self, pid: int, memory_bytes: int | None) -> DeviceProcess:
        if pid not in self._names:
            self._names[pid] = self.tree.name(pid)
        return DeviceProcess(
            pid=pid,
            whose=self.tree.whose(pid),
            name=self._names[pid],
            memory_bytes=memory_bytes,
        )


class Writer:
    """Appends lines to a file that never grows beyond a limit and never raises.

    ``stretch`` is the factor by which the period must grow: it doubles each time half of what is
    left of the limit has been written.  What would pass the limit is not written any more.
    """

    def __init__(self, path: Path, *, max_bytes: int = MAX_FILE_BYTES) -> None:
        self.path = path
        self.error = ""
        self.stretch = 1
        self._left = max_bytes
        self._next = max_bytes // 2
        self._fd: int | None = None
        try:
            # 0600: names of processes are nobody else's business
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        except OSError as error:
            self.error = f"{path}: {error.strerror}"

    def write(self, lines: list[Line]) -> None:
        """One system call for all lines: a crash cuts at most the last one."""
        if self._fd is None:
            return
        data = b"".join(encode(line) for line in lines)
        if len(data) > self._left:
            self._stop("the file's size limit is reached")
            return
        try:
            os.write(self._fd, data)
        except OSError as error:
            # a full disk is the job's trouble, not a reason to disturb it further
            self._stop(f"{self.path}: {error.strerror}")
            return
        self._left -= len(data)
        if self._left <= self._next:
            self._next = self._left // 2
            self.stretch *= 2

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _stop(self, why: str) -> None:
        self.error = why
        self.close()


class Sampler:
    """A thread that records devices and host into a run directory until it is stopped.

    ::

        with Sampler(run_dir, job=os.getpid()):
            subprocess.run(command)
    """

    def __init__(
        self,
        run_dir: Path,
        period_s: float = PERIOD_S,
        *,
        job: int | None = None,
        with_root: bool = False,
        backend: Backend | None = None,
        max_bytes: int = MAX_FILE_BYTES,
        cpu_share: float = CPU_SHARE,
    ) -> None:
        """``job``: the process whose descendants are the job (default: the caller's).

        ``with_root``: that process itself belongs to the job too.
        """
        self._run_dir = run_dir
        self._period_s = period_s
        self._job = os.getpid() if job is None else job
        self._with_root = with_root
        self._backend = backend
        self._max_bytes = max_bytes
        self._cpu_share = cpu_share
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self.cpu_s = 0.0
        """CPU time that the sampler has used, in seconds."""
        self.failure = ""
        """Why it ended early; empty when it did not."""

    def start(self) -> Sampler:
        """Returns at once; opening the driver (up to a second) happens in the thread."""
        self._thread = threading.Thread(target=self._run, name="brim-devices", daemon=True)
        self._thread.start()
        return self

    def stop(self, timeout_s: float = 5.0) -> None:
        """Take a last sample and end; a driver that hangs is left behind after ``timeout_s``."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def __enter__(self) -> Sampler:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        writer = Writer(self._run_dir / FILE, max_bytes=self._max_bytes)
        try:
            self._record(writer)
        except Exception as error:  # the monitor never harms: whatever it is, the job goes on
            self.failure = f"{type(error).__name__}: {error}"
            writer.write([Note(t=time.time(), text=f"sampling ended: {self.failure}")])
        finally:
            self.failure = self.failure or writer.error
            writer.close()

    def _record(self, writer: Writer) -> None:
        made = Probe(job=self._job, with_root=self._with_root, backend=self._backend)
        with contextlib.closing(made) as probe:
            period_s, cost_s = self._period_s, 0.0
            while not writer.error:
                last = self._stopping.wait(period_s)
                began_s = time.thread_time()
                snapshot = probe.sample()
                new = probe.about_if_new(period_s)
                about = [new] if new is not None else []
                writer.write([*about, *snapshot.devices, *_present(snapshot.host)])
                self.cpu_s = time.thread_time()
                if last:
                    return
                spent_s = self.cpu_s - began_s
                cost_s = spent_s if cost_s == 0.0 else 0.8 * cost_s + 0.2 * spent_s
                period_s = self._next_period(writer.stretch, cost_s)

    def _next_period(self, stretch: int, cost_s: float) -> float:
        """The asked period, or the one that keeps sampling within its share of a core."""
        dear = cost_s / self._cpu_share
        return min(max(self._period_s * stretch, dear), LONGEST_PERIOD_S)


def _says_the_same(before: About, now: About) -> bool:
    """Periods that differ by less than half are the same to a reader; a line is 6 kB."""
    if before.devices != now.devices or before.fields.keys() != now.fields.keys():
        return False
    pairs = [(before.fields[name].period_s, m.period_s) for name, m in now.fields.items()]
    return all(a == b or (a and b and 0.67 < a / b < 1.5) for a, b in pairs)


def _present(host: HostSample | None) -> list[HostSample]:
    return [] if host is None else [host]


def _prefixed(prefix: str, meanings: dict[str, Meaning], period_s: float) -> dict[str, Meaning]:
    """Meanings by full name, each with its own period."""
    return {
        f"{prefix}.{name}": msgspec.structs.replace(
            meaning, period_s=max(meaning.period_s or 0.0, period_s)
        )
        for name, meaning in meanings.items()
    }


def _backends() -> list[Backend]:
    from brim.observe.amd import Amd
    from brim.observe.nvml import Nvml

    return [Nvml(), Amd()]
