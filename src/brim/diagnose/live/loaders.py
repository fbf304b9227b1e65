"""What the loader's workers did over the window, as figures that tell causes apart."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.diagnose.live import stacks
from brim.diagnose.live.window import Chosen
from brim.record.steps import Frame, Stack
from brim.record.workers import WorkerLine


@dataclass(frozen=True, kw_only=True, slots=True)
class Workers:
    """Loader workers, summed over the lines that lie in the window."""

    count: int
    """Workers of the loader."""
    active: int
    """Workers that made batches through most of the window; others have ended, or sleep."""
    span: float
    """Seconds from the first to the last step of the window."""
    pids: int
    """Worker processes seen; more than ``count`` when workers are started anew."""
    samples: int
    fetches: int
    wall: float
    """Seconds of all lines together."""
    fetch: float
    """Seconds spent making batches (getitem and collate), waits for a core included."""
    waiting: float
    pickle: float
    pickle_bytes: int
    cpu: float
    """CPU seconds of all threads."""
    system: float
    thread_cpu: float
    run_delay: float
    preempted: int
    major_faults: int
    read_calls_bytes: int
    read_device_bytes: int
    running: float
    """Threads of one worker that wanted a core at the same time, on average."""
    threads: int
    cores: int
    """Cores that a worker may use."""
    getitem: float
    collate: float
    tensors: float
    """Tensors in a batch, mean of those that were weighed."""
    tensor_bytes: float
    storage_bytes: float
    top: list[tuple[str, float]]
    """Functions with their share of the workers' loading time, most first."""
    place: Frame | None
    """The user's line that takes most of it."""
    reading: float
    """Share of the sampled loading time in which a worker was off its core."""

    @property
    def busy(self) -> float:
        """Share of a worker's time in which it makes batches."""
        return min(1.0, self.fetch / self.wall) if self.wall else 0.0

    @property
    def on_core(self) -> float:
        """Of the time in which it makes batches: its loading thread computes."""
        return min(1.0, self.thread_cpu / self.fetch) if self.fetch else 0.0

    @property
    def starved(self) -> float:
        """Of the time in which it makes batches: runnable, without a core."""
        return min(1.0, self.run_delay / self.fetch) if self.fetch else 0.0

    @property
    def blocked(self) -> float:
        """Of the time in which it makes batches: neither computing nor runnable."""
        return max(0.0, 1.0 - self.on_core - self.starved) if self.fetch else 0.0

    @property
    def sample_cpu(self) -> float:
        """CPU seconds that a sample takes, all threads."""
        return self.cpu / self.samples if self.samples else math.nan


def gather(
    lines: Sequence[WorkerLine], chosen: Chosen, table: Mapping[str, Stack]
) -> Workers | None:
    """Sum the lines of the window; None when the loader has no workers."""
    if not chosen.steps:
        return None
    begin, end = chosen.steps[0].t - chosen.steps[0].wall, chosen.steps[-1].t
    inside = [line for line in lines if begin <= line.t <= end + 0.5] or list(lines)
    if not inside:
        return None
    total = _Total(inside)
    top, place, reading = _tops(inside, table)
    weighed = max(1, total("weighed"))
    return Workers(
        count=max(line.workers for line in inside),
        active=_active(inside, end - begin),
        span=end - begin,
        pids=len({line.pid for line in inside}),
        samples=total("samples"),
        fetches=total("fetches"),
        wall=total("wall"),
        fetch=total("getitem") + total("collate"),
        waiting=total("waiting"),
        pickle=total("pickle"),
        pickle_bytes=total("pickle_bytes"),
        cpu=total("cpu"),
        system=total("system"),
        thread_cpu=total("thread_cpu"),
        run_delay=total("run_delay"),
        preempted=total("preempted"),
        major_faults=total("major_faults"),
        read_calls_bytes=total("read_calls_bytes"),
        read_device_bytes=total("read_device_bytes"),
        running=_mean([(line.running, line.wall) for line in inside]),
        threads=max(line.threads for line in inside),
        cores=min((line.cores for line in inside if line.cores), default=0),
        getitem=total("getitem"),
        collate=total("collate"),
        tensors=total("tensors") / weighed,
        tensor_bytes=total("tensor_bytes") / weighed,
        storage_bytes=total("storage_bytes") / weighed,
        top=top,
        place=place,
        reading=reading,
    )


def first_fetch(lines: Sequence[WorkerLine], chosen: Chosen) -> float:
    """Seconds that the slowest worker spent making batches before the window began."""
    begin = chosen.steps[0].t - chosen.steps[0].wall if chosen.steps else 0.0
    made: dict[int, float] = defaultdict(float)
    for line in lines:
        if line.t < begin:
            made[line.pid] += line.getitem + line.collate
    return max(made.values(), default=0.0)


def _active(lines: Sequence[WorkerLine], span: float) -> int:
    """Workers whose lines cover a good part of the window; at least one."""
    covered: dict[int, float] = defaultdict(float)
    for line in lines:
        covered[line.worker] += line.wall
    return max(1, sum(seconds > 0.25 * span for seconds in covered.values()))


class _Total:
    def __init__(self, lines: Sequence[WorkerLine]) -> None:
        self._lines = lines

    def __call__(self, name: str) -> int:
        return sum(getattr(line, name) for line in self._lines)


def _mean(weighted: Sequence[tuple[float, float]]) -> float:
    weight = sum(w for _, w in weighted)
    return sum(v * w for v, w in weighted) / weight if weight else 0.0


def _tops(
    lines: Sequence[WorkerLine], table: Mapping[str, Stack]
) -> tuple[list[tuple[str, float]], Frame | None, float]:
    """Functions and the user's line by sampled time, and the share of it off a core."""
    functions: dict[str, float] = defaultdict(float)
    places: dict[Frame, float] = defaultdict(float)
    wall = on_core = 0.0
    for line in lines:
        for key, (_, seconds, cpu, _) in line.stacks.items():
            stack = table.get(f"{line.pid}:{key}")
            if stack is None or stack.phase not in ("getitem", "collate"):
                continue
            wall += seconds
            on_core += min(cpu, seconds)
            functions[stacks.function_of(stack)] += seconds
            place = stacks.site(stack)
            if place is not None:
                places[place] += seconds
    top = sorted(functions.items(), key=lambda item: -item[1])[:3]
    shares = [(name, seconds / wall) for name, seconds in top] if wall else []
    reading = 1.0 - on_core / wall if wall else 0.0
    return shares, max(places, key=places.__getitem__, default=None), reading
