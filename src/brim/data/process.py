"""The loader process: makes rows ahead of the trainer, in order, with a pool of threads.

It runs beside the trainer, never in it: a Python thread in the training process costs that process
its launch rate.  The unit of work is a sample, so one slow file delays its own row and no other;
whoever finishes a row's last sample lays the row into its slot of the ring.

From the trainer come ``("next", seconds waited)`` and ``("free", slot)``; to it go ``("row", …)``
in order, ``("bad", what, hint)`` when bad samples are too many, ``("refused", what, hint)`` for
what else the user has to change (a package that is missing) and ``("fail", traceback)`` for a bug.
When the trainer is gone the connection ends and so does this process.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import threading
import time
import traceback
from collections import deque
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from brim.data.controller import Controller, Window
from brim.data.maker import STAGES, Maker, Stopwatch
from brim.data.plan import Plan, RowTask
from brim.data.quarantine import Quarantine, TooManyBadSamples
from brim.data.ring import MAX_THREADS, BlackBox, Ring, SlotWriter
from brim.data.rows import Document, assemble
from brim.errors import BrimError
from brim.record.loader import LoaderLine, append

_WINDOW_S = 2.0
_FIRST_WINDOW_S = 0.5
_MEMORY = 16 << 30


@dataclass(frozen=True, kw_only=True)
class Job:
    """What the trainer asks for; pickled to the process."""

    maker: Maker
    plan: Plan
    rank: int
    world: int
    step: int
    """First step; ``row`` its first row of this rank."""
    row: int
    stop: int | None
    """Step at which to stop; None: never."""
    free: tuple[int, ...]
    """Slots that the trainer does not hold."""
    slots: int
    slot_bytes: int
    held: int
    """Slots that the trainer keeps while it asks for the next row."""
    bucket: int
    whole: bool
    """Pictures are not cut into patches."""
    threads: int
    """0: the controller decides."""
    cores: float
    """CPU cores for this rank."""
    bad_path: Path | None
    max_bad_share: float
    max_bad: int
    record: Path | None
    avoid: dict[int, str]
    suspects: frozenset[int]


@dataclass(slots=True)
class _RowInWork:
    task: RowTask
    slot: int
    documents: list[Document | None]
    left: int
    message: tuple[Any, ...] | None = None
    """Set when the row lies in its slot."""


@dataclass(slots=True)
class _Sums:
    """Measured since the last window."""

    start: float
    rows: int = 0
    made: int = 0
    samples: int = 0
    images: int = 0
    waited: float = 0.0
    longest: float = 0.0
    ready: float = 0.0
    task_wall: float = 0.0
    task_cpu: float = 0.0
    stages: dict[str, float] = field(default_factory=lambda: dict.fromkeys((*STAGES, "write"), 0.0))


class Engine:
    """The running process."""

    def __init__(self, job: Job, connection: Connection, ring: Ring) -> None:
        self.job, self.connection, self.ring = job, connection, ring
        self.quarantine = Quarantine(
            path=job.bad_path, max_share=job.max_bad_share, max_count=job.max_bad
        )
        self.controller = Controller(
            max_threads=MAX_THREADS // 2,  # threads on their way out still have their line
            max_depth=max(1, job.slots - job.held),
            cores=job.cores,
            threads=job.threads or min(2, max(1, round(job.cores))),
            depth=min(2, max(1, job.slots - job.held)),
            fixed_threads=bool(job.threads),
        )
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._free = list(job.free)
        self._in_order: deque[_RowInWork] = deque()  # rows that are not sent yet
        self._ready = 0  # rows sent and not taken
        self._tasks: queue.SimpleQueue[tuple[_RowInWork, int] | None] = queue.SimpleQueue()
        self._running = 0
        self._idle_lines = list(range(MAX_THREADS))
        self._suspect_lock = threading.Lock()
        self._send_lock = threading.Lock()
        self._faulted: set[int] = set()
        self._sums = _Sums(time.monotonic())
        self._seen = 0
        self._taken = 0
        self._first_window = True
        self._stopped = False

    def run(self) -> None:
        """Until the trainer is gone."""
        threading.Thread(target=self._listen, daemon=True).start()
        try:
            self._feed()
        except BaseException:
            self._send(("fail", traceback.format_exc()))
        while not self._stopped:
            with self._changed:
                self._changed.wait(_WINDOW_S)
            self._measure()

    # feeding: the main thread

    def _feed(self) -> None:
        job, step, row = self.job, self.job.step, self.job.row
        while job.stop is None or step < job.stop:
            for task in job.plan.rows(step, job.rank, job.world)[row:]:
                slot = self._wait_for_slot()
                if slot is None:
                    return
                self._start_row(task, slot)
                self._measure()
            step, row = step + 1, 0

    def _wait_for_slot(self) -> int | None:
        """A free slot as soon as fewer rows than the depth are ahead; None: stop."""
        while True:
            with self._changed:
                if self._stopped:
                    return None
                ahead = len(self._in_order) + self._ready
                if self._free and ahead < self.controller.depth:
                    # the last one given back: its pages are there and pinned already, and memory
                    # that no row needs is never touched
                    return self._free.pop()
                self._changed.wait(0.1)
            self._measure()

    def _start_row(self, task: RowTask, slot: int) -> None:
        if slot not in self._faulted:
            self.ring.fault_in(slot)
            self._faulted.add(slot)
        count = len(task.samples)
        row = _RowInWork(task, slot, [None] * count, count)
        with self._lock:
            self._in_order.append(row)
            self._seen += count
        self._resize_pool()
        for place in range(count):
            self._tasks.put((row, place))

    def _resize_pool(self) -> None:
        with self._lock:
            while self._running < self.controller.threads:
                self._running += 1
                line = self._idle_lines.pop(0)
                threading.Thread(target=self._work, args=(line,), daemon=True).start()
            surplus, self._running = (
                self._running - self.controller.threads,
                min(self._running, self.controller.threads),
            )
        for _ in range(surplus):
            self._tasks.put(None)

    # working: the pool

    def _work(self, line: int) -> None:
        job = self.job
        guard = BlackBox(self.ring.box[line], job.avoid, job.suspects, self._suspect_lock)
        try:
            while (found := self._tasks.get()) is not None:
                self._sample(*found, guard)
        except TooManyBadSamples as error:
            self._send(("bad", error.args[0], error.hint))
        except BrimError as error:
            self._send(("refused", error.args[0], error.hint))
        except BaseException:
            self._send(("fail", traceback.format_exc()))
        finally:
            with self._lock:
                self._idle_lines.append(line)

    def _sample(self, row: _RowInWork, place: int, guard: BlackBox) -> None:
        clock, start, cpu = Stopwatch(), time.perf_counter(), time.thread_time()
        before = self.quarantine.total
        document = self.job.maker.make(row.task, place, self.quarantine, clock, guard)
        if self.quarantine.total > before:
            self.quarantine.check(self._seen)
        row.documents[place] = document
        with self._lock:
            row.left -= 1
            last = not row.left
        written = self._assemble(row) if last else 0.0
        wall = time.perf_counter() - start
        with self._lock:
            sums = self._sums
            sums.samples += 1
            sums.images += len(document.pictures) if document else 0
            sums.task_wall += wall
            sums.task_cpu += time.thread_time() - cpu
            for name, seconds in clock.wall.items():
                sums.stages[name] += seconds
            sums.stages["write"] += written

    def _assemble(self, row: _RowInWork) -> float:
        """Lay a row into its slot and send what is complete, in order; seconds of writing."""
        start = time.perf_counter()
        maker = self.job.maker
        documents = [document for document in row.documents if document is not None]
        writer = SlotWriter(self.ring.slot(row.slot))
        counts = assemble(
            documents,
            length=maker.tokens_per_row,
            vision=maker.vision,
            bucket=self.job.bucket,
            pad=maker.tokens.end_of_text,
            allocate=writer,
            whole=self.job.whole,
        )
        samples = tuple(document.sample for document in documents)
        task = row.task
        message = ("row", task.step, task.number, row.slot, writer.layout, counts, samples)
        row.documents.clear()
        with self._changed:
            row.message = message
            self._sums.made += 1
            while self._in_order and self._in_order[0].message is not None:
                self._ready += 1
                self._send(self._in_order.popleft().message)
            self._changed.notify_all()
        return time.perf_counter() - start

    # listening and measuring

    def _listen(self) -> None:
        try:
            while True:
                kind, value = self.connection.recv()
                with self._changed:
                    if kind == "free":
                        self._free.append(value)
                    else:
                        sums = self._sums
                        sums.rows += 1
                        if self._taken:  # the first row waits for this process to start
                            sums.waited += value
                            sums.longest = max(sums.longest, value)
                        self._taken += 1
                        sums.ready += 0.0 if value > 1e-3 else self._ready / self.controller.depth
                        self._ready -= 1
                    self._changed.notify_all()
        except (EOFError, OSError):
            # the trainer is gone or has had enough; whatever is in work is of no use any more
            self._stopped = True
            os._exit(0)

    def _send(self, message: Any) -> None:
        try:
            with self._send_lock:
                self.connection.send(message)
        except OSError:
            self._stopped = True

    def _measure(self) -> None:
        """Close a window: decide, and write its line."""
        now = time.monotonic()
        length = _FIRST_WINDOW_S if self._first_window else _WINDOW_S
        if now - self._sums.start < length:
            return
        with self._lock:
            sums, self._sums = self._sums, _Sums(now)
        self._first_window = self._first_window and not sums.rows
        shares = {
            name: seconds / sums.task_wall if sums.task_wall else 0.0
            for name, seconds in sums.stages.items()
        }
        window = Window(
            wall=now - sums.start,
            rows=sums.rows,
            made=sums.made,
            samples=sums.samples,
            waited=sums.waited,
            longest=sums.longest,
            task_wall=sums.task_wall,
            ready=sums.ready / sums.rows if sums.rows else 0.0,
            read_share=shares["read"],
            text_share=shares["text"],
            write_share=shares["write"],
        )
        threads, depth = self.controller.threads, self.controller.depth
        change = self.controller.update(window)
        if change is not None:
            self._resize_pool()
        if self.job.record is not None:
            self._write_line(window, sums, threads, depth, change.reason if change else "")

    def _write_line(
        self, window: Window, sums: _Sums, threads: int, depth: int, change: str
    ) -> None:
        assert self.job.record is not None
        cache, gpu = self.job.maker.cache, self.job.maker.gpu
        line = LoaderLine(
            t=sums.start + window.wall,
            wall=window.wall,
            rank=self.job.rank,
            rows=window.rows,
            samples=window.samples,
            images=sums.images,
            waited=window.waited,
            threads=threads,
            depth=depth,
            ready=window.ready,
            stages=sums.stages,
            task_wall=window.task_wall,
            task_cpu=sums.task_cpu,
            bound_by=self.controller.bound_by,
            change=change,
            bad=self.quarantine.total,
            cache_hits=cache.hits if cache else 0,
            cache_misses=cache.misses if cache else 0,
            nvjpeg_error=gpu.error if gpu else None,
        )
        try:
            append(self.job.record, line)
        except OSError:
            return  # a full disk costs the records, never the run


def limit_memory(more: int) -> None:
    """Let this process take ``more`` bytes beyond what it has (shared slots not counted).

    A decoder that runs away then fails by itself, instead of bringing the machine's killer.
    """
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    limit = pages * resource.getpagesize() + more
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or limit < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))


def main(connection: Connection, ring_fd: int) -> None:
    """Entry of the process; the descriptor of the ring is inherited."""
    # the trainer decides when to end: on Ctrl+C or SIGTERM it first finishes its step
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    torch.set_num_threads(1)
    job = connection.recv()
    if job.maker.gpu is not None:
        # a context before the limit: what the driver maps is not the decoders' doing
        torch.empty(1, device=job.maker.gpu.device)
    limit_memory(_MEMORY)
    Engine(job, connection, Ring(ring_fd, job.slots, job.slot_bytes)).run()
