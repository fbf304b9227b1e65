"""What calls to allocate and free device memory mean, told by their pattern.

torch's allocator keeps what it has: in the steady state it calls the driver not at all.  So

* ``cudaFree`` outside of any operation is the program emptying the cache;
* ``cudaFree`` inside a convolution is cuDNN's kernel search, which empties the cache after trying
  algorithms for a shape that it has not seen;
* ``cudaFree`` inside another operation is the allocator giving back its cache because an
  allocation failed;
* ``cudaMalloc`` alone is the pool growing: at the start, or for ever-new shapes.

Calls that only occur in the first part of a trace belong to its start-up.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from brim.diagnose.causes import UNKNOWN
from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.host import HostSide, State
from brim.diagnose.trace.ops import Operations
from brim.diagnose.trace.steps import Step
from brim.diagnose.trace.timeline import Int64

STEADY = 0.1
"""Share of the calls' time that lies in the last third of the steps when they never end."""


@dataclass(frozen=True, slots=True)
class Memory:
    """How allocation calls are to be read."""

    cause: str
    """A cause, or ``unknown`` for those of a start-up."""
    mallocs: int = 0
    frees: int = 0
    evidence: list[str] = field(default_factory=list)


def memory_pattern(
    device: DeviceSide, host: HostSide, operations: Operations, steps: list[Step]
) -> Memory:
    low, high = device.window
    events, names = host.events, device.trace.names
    inside = (events.start >= low) & (events.start < high)
    rows = np.flatnonzero((host.state == State.MEMORY) & inside)
    if not len(rows):
        return Memory(UNKNOWN)
    free = np.array(
        ["Free" in names[index] or "Unmap" in names[index] for index in events.name[rows]]
    )
    frees, mallocs = int(free.sum()), int((~free).sum())
    evidence = [f"{mallocs:,} device allocations and {frees:,} frees in {max(1, len(steps))} steps"]
    if not _steady(events.start[rows], events.end[rows], steps):
        return Memory(UNKNOWN, mallocs, frees, evidence)
    if not frees:
        return Memory("compute.shape-search", mallocs, frees, evidence)
    kinds = Counter(_free_kind(name) for name in _operations(operations, rows[free]))
    return Memory(kinds.most_common(1)[0][0], mallocs, frees, evidence)


def _operations(
    operations: Operations, rows: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> list[str]:
    trace = operations.trace
    around = operations.around(rows)
    return [trace.names[trace.host.name[row]] if row >= 0 else "" for row in around]


def _free_kind(operation: str) -> str:
    if not operation:
        return "memory.cache-flush"
    return "compute.shape-search" if "conv" in operation.lower() else "memory.pressure"


def _steady(
    start: Int64,
    end: Int64,
    steps: list[Step],
) -> bool:
    """Whether the calls still come in the last third of the steps."""
    if len(steps) < 3:
        return False
    late = start >= steps[-max(1, len(steps) // 3)].start
    return bool((end - start)[late].sum() >= STEADY * (end - start).sum())
