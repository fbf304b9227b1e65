"""The training steps of a trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from brim.diagnose.trace.device import DeviceSide
from brim.record.kineto import HostKind


@dataclass(frozen=True, slots=True)
class Step:
    """One step: from its start to the start of the next (the last to the window's end), ns."""

    name: str
    start: int
    end: int


def steps(device: DeviceSide) -> list[Step]:
    """By ``ProfilerStep`` spans, else by the ends of ``Optimizer.step`` spans; maybe empty."""
    low, high = device.window
    host, names = device.trace.host, device.trace.names
    rows = device.profiler_steps
    if len(rows):
        starts = host.start[rows].tolist()
        if device.in_flight:
            starts = [device.done(start) for start in starts]
        return _cut([names[i] for i in host.name[rows]], [*starts, high])
    wanted = [i for i, name in enumerate(names) if name.startswith("Optimizer.step")]
    rows = np.flatnonzero(np.isin(host.name, wanted) & (host.kind != HostKind.RUNTIME))
    ends = sorted(
        int(end) for end in _outermost(host.end[rows].tolist(), host.start[rows].tolist())
    )
    inside = [end for end in ends[:-1] if low < end < high]
    if not ends:
        return []
    return _cut([f"step {n + 1}" for n in range(len(inside) + 1)], [low, *inside, high])


def _outermost(ends: Sequence[int], starts: Sequence[int]) -> list[int]:
    """Ends of the spans that no other span holds (a scheduler's step may wrap an optimizer's)."""
    out: list[int] = []
    reach = -1
    for start, end in sorted(zip(starts, ends, strict=True)):
        if start >= reach:
            out.append(end)
            reach = end
    return out


def _cut(labels: Sequence[str], edges: Sequence[int]) -> list[Step]:
    return [
        Step(name, start, end)
        for name, start, end in zip(labels, edges[:-1], edges[1:], strict=True)
        if end > start
    ]
