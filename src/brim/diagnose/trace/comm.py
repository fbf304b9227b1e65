"""Communication: what is exposed, how many calls, and who came late."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.flops import elements as count_elements
from brim.diagnose.trace.kernels import Kind
from brim.diagnose.trace.timeline import Int64

MANY_PER_STEP: Final = 64
"""From this many collectives per optimizer step on, their number may be the fault."""
SMALL_NS: Final = 300_000
"""Collectives that last less than this on average are latency more than transfer."""
ALWAYS: Final = 0.7
"""Share of the others' waiting that one rank causes when it is "always the same"."""

_ELEMENT: Final = {
    "float": 4, "int": 4, "half": 2, "bfloat16": 2, "double": 8, "long": 8, "char": 1, "byte": 1,
    "uint8": 1, "int8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip
_NAMES: Final = (
    "allreduce", "all_reduce", "allgather", "all_gather", "reducescatter", "reduce_scatter",
    "alltoall", "all_to_all", "broadcast", "sendrecv", "reduce", "gather", "scatter",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Calls:
    """One rank's communication kernels inside its window, by start; shape (calls,) each."""

    rows: Int64
    """Device events."""
    start: Int64
    end: Int64
    name: list[str]
    n_bytes: list[int | None]
    """Of the larger side (the whole tensor), where it is known."""
    group_size: list[int]
    exposed: Int64
    """ns of each call with no compute kernel running."""


def calls(device: DeviceSide) -> Calls:
    low, high = device.window
    events, trace = device.events, device.trace
    inside = (events.start < high) & (events.end > low)
    rows = np.flatnonzero((device.kinds == Kind.COMM) & inside)
    spans = device.lanes.comm - device.lanes.compute
    start, end = np.maximum(events.start[rows], low), np.minimum(events.end[rows], high)
    infos = [trace.collectives[i] if i >= 0 else None for i in events.collective[rows]]
    n_bytes: list[int | None] = []
    for info in infos:
        elements = max(info.elements_in, info.elements_out) if info is not None else -1
        size = _ELEMENT.get(info.dtype.lower(), 0) if info is not None else 0
        n_bytes.append(elements * size if elements >= 0 and size else None)
    return Calls(
        rows=rows,
        start=events.start[rows],
        end=events.end[rows],
        name=[
            collective_name(info.name if info is not None else trace.names[events.name[row]])
            for info, row in zip(infos, rows, strict=True)
        ],
        n_bytes=n_bytes,
        group_size=[info.group_size if info is not None else 0 for info in infos],
        exposed=spans.overlap(start, end),
    )


def collective_name(text: str) -> str:
    """``ncclDevKernel_AllReduce_Sum_f32_RING_LL`` → ``all_reduce``."""
    lower = text.lower()
    for name in _NAMES:
        if name in lower:
            return _SNAKE.sub(r"\1_\2", name) if "_" not in name else name
    match = re.search(r"nccl\w*?kernel_(\w+?)[_(]", lower)
    return match[1] if match else "collective"


_SNAKE = re.compile(r"^(all|reduce|send)(to|re|ga|sc|recv)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The same collectives on all ranks; arrays of shape (calls, ranks), ns."""

    start: Int64
    end: Int64
    index: Int64
    """Position in each rank's :class:`Calls`."""

    @property
    def last(self) -> Int64:
        """Start of the last rank, shape (calls,)."""
        last: Int64 = self.start.max(axis=1)
        return last

    @property
    def waits(self) -> Int64:
        """How long each rank waited inside the call for the last one, shape (calls, ranks)."""
        waits: Int64 = np.minimum(self.last[:, None], self.end) - self.start
        return waits

    @property
    def late(self) -> Int64:
        """Which rank (by position) came last, shape (calls,)."""
        return np.asarray(np.argmax(self.start, axis=1), np.int64)


def align(ranks: Sequence[Calls]) -> Arrivals | None:
    """Match calls over ranks by their order per name; None with fewer than two ranks.

    Clocks of several hosts differ by more than a collective lasts, so each rank's clock is first
    moved so that the calls end together (the median over the calls): a collective ends on all
    ranks at once, up to its last hop.
    """
    if len(ranks) < 2:
        return None
    columns = _matched(ranks)
    if not len(columns):
        return None
    start = np.stack([r.start[columns[:, k]] for k, r in enumerate(ranks)], axis=1)
    end = np.stack([r.end[columns[:, k]] for k, r in enumerate(ranks)], axis=1)
    offset = np.median(end - np.median(end, axis=1, keepdims=True), axis=0)
    offset[np.abs(offset) < _SAME_CLOCK_NS] = 0.0
    shift = np.rint(offset).astype(np.int64)
    order = np.argsort(start.min(axis=1), kind="stable")
    return Arrivals((start - shift)[order], (end - shift)[order], columns[order])


_SAME_CLOCK_NS = 1_000_000.0


def _matched(ranks: Sequence[Calls]) -> Int64:
    """Positions of the same call on every rank, shape (calls, ranks)."""
    by_name: list[dict[str, list[int]]] = []
    for rank in ranks:
        positions: dict[str, list[int]] = defaultdict(list)
        for at, name in enumerate(rank.name):
            positions[name].append(at)
        by_name.append(positions)
    rows: list[tuple[int, ...]] = []
    for name in by_name[0]:
        lists = [positions.get(name, []) for positions in by_name]
        if len({len(entries) for entries in lists}) == 1:
            rows += zip(*lists, strict=True)
    return np.array(rows, np.int64).reshape(len(rows), len(ranks))


@dataclass(frozen=True, slots=True)
class Straggling:
    """Who holds the others up."""

    wait_ns: list[int]
    """Exposed waiting for a later rank, per rank."""
    late_ns: list[int]
    """Waiting that each rank causes on the others, summed over them."""
    late_calls: list[int]
    spread_ns: float
    """Mean spread of arrival."""
    worst: int
    """Position of the rank that causes most waiting."""
    worst_share: float
    """Its share of all waiting."""
    cause: str
    evidence: list[str] = field(default_factory=list)


def straggling(devices: Sequence[DeviceSide], ranks: Sequence[Calls]) -> Straggling | None:
    arrivals = align(ranks)
    if arrivals is None:
        return None
    waits, late = arrivals.waits, arrivals.late
    exposed = [_exposed_wait(r, arrivals.index[:, k], waits[:, k]) for k, r in enumerate(ranks)]
    caused = [int(waits[late == k].sum()) for k in range(len(ranks))]
    total = sum(caused)
    worst = int(np.argmax(caused))
    share = caused[worst] / total if total else 0.0
    cause, evidence = _kind_of_straggler(devices, worst, share)
    return Straggling(
        wait_ns=exposed,
        late_ns=caused,
        late_calls=np.bincount(late, minlength=len(ranks)).tolist(),
        spread_ns=float((arrivals.last - arrivals.start.min(axis=1)).mean()),
        worst=worst,
        worst_share=share,
        cause=cause,
        evidence=evidence,
    )


def _exposed_wait(rank: Calls, index: Int64, waits: Int64) -> int:
    """The part of the waiting that no compute hides."""
    length = np.maximum(rank.end[index] - rank.start[index], 1)
    share = np.minimum(1.0, rank.exposed[index] / length)
    return int((waits * share).sum())


def _kind_of_straggler(
    devices: Sequence[DeviceSide], worst: int, share: float
) -> tuple[str, list[str]]:
    """A slow device does the same work in more time; a larger batch is more work."""
    if share < ALWAYS:
        return "comm.straggler-data", [f"the late rank changes (most often {share:.0%} of waiting)"]
    work = [amount_of_work(device) for device in devices]
    others = [w for k, w in enumerate(work) if k != worst and w]
    same = f"rank {devices[worst].trace.rank} causes {share:.0%} of the waiting"
    if work[worst] and others:
        more = work[worst] / float(np.median(others)) - 1.0
        if more > 0.02:
            return "comm.straggler-data", [f"{same}, with {more:.0%} more work in its batch"]
        slower = slowness(devices, worst)
        if slower is not None and slower > 1.03:
            return "comm.straggler-device", [
                f"{same}, at equal work: the same kernels take {slower:.2f} times as long there"
            ]
    return "comm.straggler-data", [same]


def amount_of_work(device: DeviceSide) -> float:
    """Elements that the operations of the window take in, 0 where sizes were not recorded."""
    host = device.trace.host
    low, high = device.window
    rows = np.flatnonzero((host.dims >= 0) & (host.start >= low) & (host.start < high))
    counts = np.bincount(host.dims[rows], minlength=len(device.trace.dims))
    sizes = [float(count_elements(text)) for text in device.trace.dims]
    return float(np.dot(counts, sizes)) if len(sizes) else 0.0


def slowness(devices: Sequence[DeviceSide], rank: int) -> float | None:
    """This rank's mean kernel time over the others', median over the kernels (by name) that all
    ranks launched equally often; None without such."""
    tables = [_means(device) for device in devices]
    ratios: list[float] = []
    weights: list[float] = []
    for name, (count, mean) in tables[rank].items():
        others = [t[name] for k, t in enumerate(tables) if k != rank and name in t]
        if others and all(other[0] == count for other in others):
            ratios.append(mean / max(1.0, float(np.median([m for _, m in others]))))
            weights.append(count * mean)
    if not ratios:
        return None
    order = np.argsort(ratios)
    reach = np.cumsum(np.array(weights)[order])
    return float(np.array(ratios)[order][int(np.searchsorted(reach, reach[-1] / 2))])


def _means(device: DeviceSide) -> dict[str, tuple[int, float]]:
    """Kernel name → (launches, mean ns), compute kernels only."""
    events = device.events
    rows = np.flatnonzero((device.kinds != Kind.COMM) & (device.kinds != Kind.COPY))
    names, inverse = np.unique(events.name[rows], return_inverse=True)
    counts = np.bincount(inverse, minlength=len(names))
    times = np.bincount(inverse, (events.end - events.start)[rows].astype(np.float64), len(names))
    table = device.trace.names
    return {
        table[name]: (int(count), time / count)
        for name, count, time in zip(names, counts, times, strict=True)
    }


def too_many(found: Calls, steps: int) -> bool:
    """Whether the number of calls, more than what they carry, costs the time."""
    if steps < 1 or len(found.rows) / steps < MANY_PER_STEP:
        return False
    return float((found.end - found.start).mean()) < SMALL_NS


def bus_bandwidth(arrivals: Arrivals, ranks: Sequence[Calls], name: str) -> float | None:
    """Bytes a second on the bus after the last arrival, by nccl-tests' factors; None if unknown."""
    first = ranks[0]
    at = [k for k, i in enumerate(arrivals.index[:, 0]) if first.name[i] == name]
    total, seconds = 0.0, 0.0
    for k in at:
        i = int(arrivals.index[k, 0])
        n_bytes, size = first.n_bytes[i], first.group_size[i] or len(ranks)
        if n_bytes is None or size < 2:
            continue
        total += n_bytes * bus_factor(name, size)
        seconds += max(0, int(arrivals.end[k].max() - arrivals.last[k])) * 1e-9
    return total / seconds if seconds > 0 and total > 0 else None


def bus_factor(name: str, ranks: int) -> float:
    """nccl-tests, doc/PERFORMANCE.md: how bytes of a call turn into bytes on a link."""
    if name == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    if name in ("all_gather", "reduce_scatter", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0
