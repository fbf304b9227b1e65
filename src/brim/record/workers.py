"""``workers.rank*.jsonl``: what loader workers did, a quarter of a second or a batch a line."""

from __future__ import annotations

from pathlib import Path

import msgspec

from brim.record.lines import decoded


class WorkerLine(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Sums of one loader worker since its last line; seconds, bytes, counts."""

    pid: int
    worker: int = 0
    workers: int = 0
    """How many the loader has."""
    t: float = 0.0
    wall: float = 0.0
    fetches: int = 0
    samples: int = 0
    getitem: float = 0.0
    collate: float = 0.0
    waiting: float = 0.0
    """Between fetches: no index to work on, the queue is full enough."""
    pickle: float = 0.0
    """Handing batches over, in the worker's feeder thread."""
    pickle_bytes: int = 0
    cpu: float = 0.0
    """All threads of the worker."""
    system: float = 0.0
    thread_cpu: float = 0.0
    """The thread that loads."""
    run_delay: float = 0.0
    """The thread that loads was runnable, without a core."""
    switches: int = 0
    preempted: int = 0
    major_faults: int = 0
    read_calls_bytes: int = 0
    read_device_bytes: int = 0
    threads: int = 0
    running: float = 0.0
    """How many of its threads wanted a core, on average."""
    cores: int = 0
    """Cores that the worker may use."""
    weighed: int = 0
    tensors: int = 0
    tensor_bytes: int = 0
    storage_bytes: int = 0
    stacks: dict[str, tuple[int, float, float, float]] = {}


def read_workers(path: Path) -> list[WorkerLine]:
    """All whole lines; an absent file is a job without loader workers."""
    if not path.exists():
        return []
    return list(decoded(path, WorkerLine))
