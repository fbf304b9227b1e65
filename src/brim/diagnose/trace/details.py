"""Fills the tables of :mod:`brim.diagnose.trace.tables`."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brim.diagnose.trace.comm import align, bus_bandwidth
from brim.diagnose.trace.findings import Job, shorten
from brim.diagnose.trace.kernels import Kind, classify
from brim.diagnose.trace.modules import module_rows
from brim.diagnose.trace.rank import Rank
from brim.diagnose.trace.roofline import Call, reached
from brim.diagnose.trace.segments import timeline_rows
from brim.diagnose.trace.steps import Step
from brim.diagnose.trace.tables import (
    MAX_KERNELS,
    MAX_MODULES,
    Bound,
    CollRow,
    KernelRow,
    KindRow,
    RankRow,
    StepRow,
    rows,
)

MAX_STEPS = 400


def details(job: Job) -> dict[str, Any]:
    """All tables that the traces can fill."""
    tables: dict[str, Sequence[Any]] = {
        "kernels": kernel_rows(job),
        "kernel_kinds": kind_rows(job),
        "ranks": rank_rows(job),
        "collectives": collective_rows(job),
        "steps": step_rows(job),
        "timeline": timeline_rows(job.ranks),
        "modules": module_rows(job.ranks)[:MAX_MODULES],
    }
    return {name: rows(table) for name, table in tables.items() if table}


def _whole(job: Job) -> float:
    """All ranks' windows together, ns."""
    return float(sum(rank.window_ns for rank in job.ranks))


@dataclass(slots=True)
class _Sum:
    calls: int = 0
    ns: int = 0
    flops: float = 0.0
    n_bytes: float = 0.0
    known_ns: int = 0
    """Time of the calls whose work is known."""
    roofed: list[Call] = field(default_factory=list)
    bounds: Counter[Bound] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)


def kernel_rows(job: Job) -> list[KernelRow]:
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for rank in job.ranks:
        _count_kernels(rank, sums)
        for call in rank.calls_with_sizes:
            _count_work(rank, call, sums)
    whole = _whole(job)
    longest = sorted(sums.items(), key=lambda item: -item[1].ns)[:MAX_KERNELS]
    return [_kernel_row(name, total, whole) for name, total in longest]


def _count_kernels(rank: Rank, sums: dict[str, _Sum]) -> None:
    events, names = rank.trace.device, rank.trace.names
    low, high = rank.device.window
    rows_ = np.flatnonzero((events.start < high) & (events.end > low))
    used, inverse = np.unique(events.name[rows_], return_inverse=True)
    calls = np.bincount(inverse, minlength=len(used))
    time = np.bincount(inverse, (events.end - events.start)[rows_].astype(np.float64), len(used))
    for name, count, ns in zip(used, calls, time, strict=True):
        total = sums[names[name]]
        total.calls += int(count)
        total.ns += int(ns)


def _count_work(rank: Rank, call: Call, sums: dict[str, _Sum]) -> None:
    """Give a call to its kernels, and its work to the longest of them."""
    table, trace = rank.kernels, rank.trace
    dims = trace.dims[int(trace.host.dims[call.row])]
    operation = f"{table.operation_name(call.row)} {shorten(dims, 60)}"
    names = trace.device.name[table.rows[call.members]]
    for name, ns in zip(names, table.ns[call.members], strict=True):
        sums[trace.names[name]].operations[operation] += int(ns)
    if call.work is None:
        return
    total = sums[trace.names[trace.device.name[table.rows[call.main]]]]
    total.flops += call.work.flops
    total.n_bytes += call.work.n_bytes
    total.known_ns += call.ns
    if call.roof_ns is not None:
        total.roofed.append(call)
        total.bounds[call.bound] += call.ns


def _kernel_row(name: str, total: _Sum, whole: float) -> KernelRow:
    kernel = classify(name)
    is_copy = name.startswith(("Memcpy", "Memset"))
    seconds = total.known_ns * 1e-9
    return KernelRow(
        name=shorten(name, 200),
        kind=Kind.COPY.label if is_copy else kernel.kind.label,
        dtype="" if is_copy else kernel.dtype,
        library="" if is_copy else kernel.library,
        calls=total.calls,
        time_us=total.ns / 1e3,
        share=total.ns / whole,
        op=total.operations.most_common(1)[0][0] if total.operations else "",
        flops_per_s=total.flops / seconds if seconds else None,
        bytes_per_s=total.n_bytes / seconds if seconds else None,
        attainable=reached(total.roofed),
        bound=total.bounds.most_common(1)[0][0] if total.bounds else "",
    )


def kind_rows(job: Job) -> list[KindRow]:
    calls: Counter[int] = Counter()
    time: Counter[int] = Counter()
    for rank in job.ranks:
        events = rank.trace.device
        low, high = rank.device.window
        inside = (events.start < high) & (events.end > low)
        kinds = rank.device.kinds[inside]
        ns = (events.end - events.start)[inside].astype(np.float64)
        for kind in np.unique(kinds):
            calls[int(kind)] += int((kinds == kind).sum())
            time[int(kind)] += int(ns[kinds == kind].sum())
    whole = _whole(job)
    return [
        KindRow(
            kind=Kind(kind).label,
            calls=calls[kind],
            time_us=ns / 1e3,
            share=ns / whole,
            mean_us=ns / 1e3 / calls[kind],
        )
        for kind, ns in time.most_common()
    ]


def rank_rows(job: Job) -> list[RankRow]:
    return [_rank_row(job, at, rank) for at, rank in enumerate(job.ranks)]


def _rank_row(job: Job, at: int, rank: Rank) -> RankRow:
    time, late = rank.time, job.straggling
    info = rank.trace.devices.get(rank.device.main_device)
    by_cause = sorted(rank.idle.items(), key=lambda item: -item[1])
    window = rank.window_ns / 1e3
    held = by_cause[0][0] if by_cause and time.idle_us > time.compute_us else "compute"
    return RankRow(
        rank=rank.trace.rank,
        file=rank.trace.path.name,
        device=info.name if info is not None else "",
        window_us=time.window_us,
        steps=len(rank.steps),
        compute=time.compute_us / window,
        exposed_comm=time.exposed_comm_us / window,
        exposed_copy=time.exposed_copy_us / window,
        idle=time.idle_us / window,
        idle_by_cause={cause: ns / rank.window_ns for cause, ns in by_cause},
        comm_wait_us=late.wait_ns[at] / 1e3 if late is not None else None,
        late_us=late.late_ns[at] / 1e3 if late is not None else None,
        late_calls=late.late_calls[at] if late is not None else None,
        late_cause=held if late is not None and late.late_calls[at] else "",
    )


def collective_rows(job: Job) -> list[CollRow]:
    ranks = [rank.calls for rank in job.ranks]
    arrivals = align(ranks)
    spread: dict[str, list[int]] = defaultdict(list)
    if arrivals is not None:
        for index, ns in zip(arrivals.index[:, 0], np.ptp(arrivals.start, axis=1), strict=True):
            spread[ranks[0].name[index]].append(int(ns))
    out = []
    for name in dict.fromkeys(name for found in ranks for name in found.name):
        count = calls = exposed = ns = 0
        total: int | None = 0
        for rank, found in zip(job.ranks, ranks, strict=True):
            at = [k for k, other in enumerate(found.name) if other == name]
            calls += len(at)
            count += max(1, len(rank.steps))
            exposed += int(found.exposed[at].sum())
            ns += int((found.end - found.start)[at].sum())
            known = [found.n_bytes[k] for k in at]
            total = None if total is None or None in known else total + sum(n or 0 for n in known)
        out.append(
            CollRow(
                name=name,
                calls_per_step=calls / count,
                bytes_per_step=total / count if total is not None else None,
                time_us=ns / 1e3 / len(ranks),
                exposed_us=exposed / 1e3 / len(ranks),
                spread_us=float(np.mean(spread[name])) / 1e3 if spread.get(name) else None,
                bus_bytes_per_s=bus_bandwidth(arrivals, ranks, name) if arrivals else None,
            )
        )
    return sorted(out, key=lambda row: -row.exposed_us)


def step_rows(job: Job) -> list[StepRow]:
    each = max(1, MAX_STEPS // len(job.ranks))
    return [_step_row(rank, step) for rank in job.ranks for step in rank.steps[:each]]


def _step_row(rank: Rank, step: Step) -> StepRow:
    """Idle gaps that cross a step's border are split in proportion."""
    time = rank.device.lanes.time(step.start, step.end)
    gaps, low = rank.blame.gaps, rank.device.window[0]
    first = int(np.searchsorted(gaps.end, step.start, side="right"))
    here = slice(first, int(np.searchsorted(gaps.start, step.end)))
    inside = np.minimum(gaps.end[here], step.end) - np.maximum(gaps.start[here], step.start)
    share = np.maximum(inside, 0) / np.maximum(gaps.lengths[here], 1)
    causes: dict[str, float] = defaultdict(float)
    for label, ns in rank.blame.by.items():
        us = float((ns[here] * share).sum()) / 1e3
        if us > 0:
            causes[rank.cause_of(label)] += us
    return StepRow(
        rank=rank.trace.rank,
        name=step.name,
        start_us=(step.start - low) / 1e3,
        wall_us=time.window_us,
        compute_us=time.compute_us,
        exposed_comm_us=time.exposed_comm_us,
        exposed_copy_us=time.exposed_copy_us,
        idle_us=time.idle_us,
        idle_by_cause=dict(sorted(causes.items(), key=lambda item: -item[1])),
    )
