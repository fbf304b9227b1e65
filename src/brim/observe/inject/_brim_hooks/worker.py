"""Loader workers: what a batch costs there, in which stage, and whether the worker runs or waits.

Each worker appends to one file per rank; a line sums the fetches of a quarter of a second or of
one batch, whichever is longer.
"""

from __future__ import annotations

import functools
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from _brim_hooks import recorder as _r

now = _r.now
EVERY = 0.25

current: WorkerRecorder | None = None  # of this process, in a loader worker
_timings = threading.local()


class WorkerRecorder:
    """Sums of one loader worker; see ``brim.record.workers.WorkerLine`` for the fields."""

    def __init__(self, worker_id: int, num_workers: int) -> None:
        from _brim_hooks import loader, sampler

        loader._worker_pids.add(os.getpid())
        _r.current = None
        self.thread = threading.get_ident()
        self.phase = ""
        self.who = {"pid": os.getpid(), "worker": worker_id, "workers": num_workers}
        self.file = _r.Appender("workers.rank%d.jsonl" % _r.rank())
        self.sums: dict[str, float] = {}
        self.demand: dict[str, float] = {}
        self.seen = 0
        self.last = now()
        self.usage = _usage()
        stacks = _Tagged(_r.Appender("stacks.workers.rank%d.jsonl" % _r.rank()), os.getpid())
        self.sampler = sampler.Sampler(self, stacks)
        self.sampler.start()

    def add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0) + value

    def write(self) -> None:
        """Called by the sampler; a worker writes its lines itself, they are few."""

    def flush(self) -> None:
        if _r.parent_is_measured():
            _r.off = True  # ends the sampler, and every hook passes through from here on
            return
        t, usage = now(), _usage()
        record: dict[str, Any] = dict(self.who, t=t, wall=t - self.last)
        record.update({k: usage[k] - self.usage.get(k, 0) for k in usage})
        record.update(self.sums)
        record["threads"], record["running"] = _threads(self)
        record["cores"] = _cores()
        samples = self.sampler.take()
        if samples:
            record["stacks"] = _r.rounded(samples)
        self.file.line(record)
        self.sums, self.last, self.usage = {}, t, usage


class _Tagged:
    """Stacks of several workers share a file; each line says whose it is."""

    def __init__(self, appender: _r.Appender, pid: int) -> None:
        self.appender, self.pid = appender, pid

    def line(self, record: dict[str, Any]) -> None:
        self.appender.line(dict(record, pid=self.pid))


def _usage() -> dict[str, float]:
    """Process-wide counters: CPU seconds, switches, faults, bytes read, waits for a core."""
    r = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "cpu": r.ru_utime + r.ru_stime,
        "system": r.ru_stime,
        "switches": r.ru_nvcsw,
        "preempted": r.ru_nivcsw,
        "major_faults": r.ru_majflt,
        "thread_cpu": time.thread_time(),
        "run_delay": _run_delay(),
    }
    try:
        with open("/proc/self/io", "rb") as f:
            io = dict(line.split(b": ") for line in f.read().splitlines())
        found["read_calls_bytes"] = int(io[b"rchar"])
        found["read_device_bytes"] = int(io[b"read_bytes"])
    except (OSError, KeyError, ValueError):
        pass
    return found


def _run_delay() -> float:
    delay = _r.RunDelay(threading.get_native_id())
    try:
        return delay.read() or 0.0
    finally:
        delay.close()


def _threads(worker: WorkerRecorder) -> tuple[int, float]:
    """Number of threads, and how many on average wanted a core since the last line."""
    fresh: dict[str, float] = {}
    wanted, names = 0.0, []
    try:
        names = os.listdir("/proc/self/task")
    except OSError:
        return 0, 0.0
    for name in names[:128]:
        try:
            with open("/proc/self/task/%s/schedstat" % name, "rb") as f:
                on, waiting = f.read().split()[:2]
        except (OSError, ValueError):
            continue
        fresh[name] = (int(on) + int(waiting)) * 1e-9
        wanted += fresh[name] - worker.demand.get(name, fresh[name])
    worker.demand = fresh
    elapsed = now() - worker.last
    return len(names), wanted / elapsed if elapsed > 0 else 0.0


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 1


def patch_worker(module: Any) -> None:
    original = module._worker_loop

    @functools.wraps(original)
    def _worker_loop(*args: Any, **kwargs: Any) -> Any:
        _begin(args)
        return original(*args, **kwargs)

    module._worker_loop = _worker_loop


@_r.guarded
def _begin(args: tuple[Any, ...]) -> None:
    global current
    current = WorkerRecorder(args[10] if len(args) > 10 else 0, args[11] if len(args) > 11 else 0)
    _patch_pickling()


def patch_fetch(module: Any) -> None:
    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        fetcher = getattr(module, name)
        fetcher.fetch = _wrap_fetch(fetcher.fetch)


def _wrap_fetch(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(original)
    def fetch(self: Any, indices: Any) -> Any:
        owner = current if current is not None else _r.current
        if owner is None or _r.off:
            return original(self, indices)
        _time_collate(self)
        t, owner.phase = now(), "getitem" if owner is current else owner.phase
        waited = t - getattr(_timings, "end", t)
        _timings.collate = 0.0
        try:
            data = original(self, indices)
        finally:
            wall = now() - t
            owner.phase = "" if owner is current else owner.phase
            _fetched(owner, wall, waited, indices)
            _timings.end = now()
        _weigh(owner, data)
        return data

    return fetch


@_r.guarded
def _fetched(owner: WorkerRecorder | _r.Recorder, wall: float, waited: float, indices: Any) -> None:
    collate = getattr(_timings, "collate", 0.0)
    owner.add("collate", collate)
    owner.add("getitem", wall - collate)
    if isinstance(owner, WorkerRecorder):
        owner.add("fetches", 1)
        owner.add("samples", len(indices) if isinstance(indices, (list, tuple)) else 1)
        owner.add("waiting", waited)
        if now() - owner.last >= EVERY:
            owner.flush()


@_r.guarded
def _time_collate(fetcher: Any) -> None:
    """Bracket the fetcher's collate function, once."""
    if getattr(fetcher, "_brim_timed", False):
        return
    fetcher._brim_timed, inner = True, fetcher.collate_fn

    def collate(*args: Any, **kwargs: Any) -> Any:
        owner = current if current is not None else _r.current
        t = now()
        if owner is not None and owner is current:
            owner.phase = "collate"
        try:
            return inner(*args, **kwargs)
        finally:
            _timings.collate = getattr(_timings, "collate", 0.0) + now() - t

    fetcher.collate_fn = collate


def _walk(data: Any, depth: int = 0) -> Iterator[Any]:
    """Tensors inside a batch, bounded."""
    if hasattr(data, "untyped_storage"):
        yield data
    elif isinstance(data, dict) and depth < 4:
        for value in list(data.values())[:1000]:
            yield from _walk(value, depth + 1)
    elif isinstance(data, (list, tuple)) and depth < 4:
        for value in data[:1000]:
            yield from _walk(value, depth + 1)


@_r.guarded
def _weigh(owner: WorkerRecorder | _r.Recorder, data: Any) -> None:
    """Every eighth batch: how many tensors it has, their bytes, the bytes of their storages."""
    if not isinstance(owner, WorkerRecorder):
        return
    owner.seen += 1
    if owner.seen % 8 != 1:
        return
    tensors = list(_walk(data))
    owner.add("weighed", 1)
    owner.add("tensors", len(tensors))
    owner.add("tensor_bytes", sum(t.numel() * t.element_size() for t in tensors))
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    owner.add("storage_bytes", sum(storages.values()))


def _patch_pickling() -> None:
    """What it takes to hand a batch over: pickling in the worker's feeder thread."""
    from multiprocessing.reduction import ForkingPickler

    original = ForkingPickler.dumps

    @functools.wraps(original)
    def dumps(obj: Any, protocol: Any = None) -> Any:
        t = now()
        data = original(obj, protocol)
        if current is not None:
            current.add("pickle", now() - t)
            current.add("pickle_bytes", len(data))
        return data

    ForkingPickler.dumps = staticmethod(dumps)  # type: ignore[method-assign]
