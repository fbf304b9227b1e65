"""Operations in a slow implementation: far below their roof, or made of hundreds of launches.

A slow path is known by its name (convolutions without a library, patch by patch) or by what it
does: one call of one ATen operation that launches hundreds of kernels and copies.  Then not the
program launches too much but the operation does, and the host's time for it, the idle device
beside it and the copies in it are all the operation's.  Operations that run over lists of tensors
or over time steps launch much by their nature and do not count.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from brim.diagnose.trace.flops import Roof
from brim.diagnose.trace.host import HostSide
from brim.diagnose.trace.kernels import Kind
from brim.diagnose.trace.loss import REACHED, Claim, claim
from brim.diagnose.trace.ops import Operations
from brim.diagnose.trace.precision import fast_format
from brim.diagnose.trace.roofline import Call, Inside, groups, work_of
from brim.diagnose.trace.table import Float64, Kernels
from brim.diagnose.trace.timeline import Bool, Int64, Spans, union
from brim.hardware import gpus
from brim.record.kineto import HostKind

SLOW_BELOW: Final = 0.10
"""An operation under this share of its roof is slow."""
HUNDREDS: Final = 200
"""Launches of one call from which on the operation itself is what launches too much; the longest
ordinary ones (sorts, matrix decompositions aside) have some tens."""
COMES_BACK: Final = 0.9
"""Share of a slow kernel's time, where its work is not known."""

_SLOW_PATH: Final = re.compile(r"^aten::_?(?:slow_conv|naive_conv|thnn_conv)")
_BY_NATURE: Final = re.compile(r"foreach|fused|lstm|gru|rnn|linalg|cholesky|_copy$|nested|segment")
_NAIVE: Final = (
    "vol2col",
    "col2vol",
    "slow_conv",
    "naive_conv",
    "conv_depthwise3d",
    "implicit_convolvend",
)
"""Parts of the names of kernels that are known as the slow way."""


@dataclass(frozen=True, slots=True)
class SlowCall:
    """One call of an operation that runs in a slow implementation."""

    row: int
    """Of the host's events."""
    launches: int
    """Kernels, copies and fills on the device."""
    known: bool
    """By its name, not only by its launches."""


class SlowOperations:
    """The calls of slow paths in one trace."""

    def __init__(self, host: HostSide, operations: Operations) -> None:
        self.host, self.operations = host, operations

    @cached_property
    def calls(self) -> list[SlowCall]:
        """Innermost ones, by thread and start."""
        events = self.host.events
        launch = self.host.launch[self.host.launch >= 0]
        found = []
        for thread in np.unique(events.thread[launch]):
            starts = np.sort(events.start[launch[events.thread[launch] == thread]])
            found += self._of_thread(int(thread), starts)
        return found

    def _of_thread(self, thread: int, starts: Int64) -> list[SlowCall]:
        host, names = self.host.events, self.host.trace.names
        rows = self.operations.nest(thread).rows
        rows = rows[host.kind[rows] == HostKind.OP]
        first, behind = np.searchsorted(starts, (host.start[rows], host.end[rows]))
        known = np.array([bool(_SLOW_PATH.match(name)) for name in names], np.bool_)
        other = np.array([_may_be_slow(name) for name in names], np.bool_)
        count = behind - first
        slow = (known[host.name[rows]] & (count > 0)) | (
            other[host.name[rows]] & (count >= HUNDREDS)
        )
        at = np.flatnonzero(slow)
        inner = at[:-1][host.start[rows[at[1:]]] >= host.end[rows[at[:-1]]]]
        return [
            SlowCall(int(rows[k]), int(count[k]), bool(known[host.name[rows[k]]]))
            for k in [*inner.tolist(), *at[-1:].tolist()]
        ]

    @cached_property
    def spans(self) -> dict[int, Spans]:
        """Thread → the moments inside slow calls."""
        host = self.host.events
        rows = np.array([call.row for call in self.calls], np.int64)
        return {
            int(thread): union(
                host.start[rows[host.thread[rows] == thread]],
                host.end[rows[host.thread[rows] == thread]],
            )
            for thread in np.unique(host.thread[rows])
        }

    def holds(self, launch: Int64) -> Bool:
        """Whether each launch (a host row, or -1) is inside a slow call; shape as ``launch``."""
        return self.host.begins_in(launch, self.spans)

    def evidence(self) -> list[str]:
        """The longest kind of call: its name, sizes and launches."""
        host, trace = self.host.events, self.host.trace
        time: dict[tuple[int, int], int] = {}
        for call in self.calls:
            key = (int(host.name[call.row]), int(host.dims[call.row]))
            time[key] = time.get(key, 0) + int(host.end[call.row] - host.start[call.row])
        if not time:
            return []
        name, dims = max(time, key=lambda key: time[key])
        alike = [c for c in self.calls if (host.name[c.row], host.dims[c.row]) == (name, dims)]
        sizes = f" on {_first_sizes(trace.dims[dims])}" if dims >= 0 else ""
        most = max(call.launches for call in alike)
        count = f"{len(alike):,} such call{'s' * (len(alike) != 1)}"
        return [f"{trace.names[name]}{sizes}: {most:,} launches in one call, {count}"]


def _may_be_slow(name: str) -> bool:
    return name.startswith("aten::") and not _BY_NATURE.search(name)


def _first_sizes(dims: str) -> str:
    """The sizes of the first two inputs, as they stand in the trace."""
    parts = re.findall(r"\[[\d, ]+\]", dims)
    return " and ".join(parts[:2])


def slow(table: Kernels, free: Bool, *, calls: Sequence[Call], paths: SlowOperations) -> Claim:
    """Kernels in slow paths, kernels that are known as the slow way, and operations far below
    their roof."""
    taken, back = _in_slow_paths(table, paths)
    evidence = paths.evidence()
    names = np.array([any(n in name.lower() for n in _NAIVE) for name in table.device.trace.names])
    naive = names[table.device.events.name[table.rows]] & ~taken
    if naive.any():
        taken |= naive
        back[naive] = table.ns[naive] * COMES_BACK
        evidence.append(f"{int(naive.sum()):,} launches of a generic convolution kernel")
    faster = fast_format(table) is not None
    for group in groups(table, calls):
        if group.attainable is None or group.attainable >= SLOW_BELOW or group.kind != Kind.CONV:
            continue
        mine = group.members[~taken[group.members]]
        if faster:
            mine = mine[table.dtype[mine] != "fp32"]  # slow for its format
        taken[mine] = True
        back[mine] = table.ns[mine] * (1.0 - group.attainable / REACHED)
        evidence.append(f"{group.operation} reaches {group.attainable:.1%} of its roof")
    return claim(table, "compute.slow-kernel", taken & free, back, evidence[:3])


def _in_slow_paths(table: Kernels, paths: SlowOperations) -> tuple[Bool, Float64]:
    """All kernels of calls known by name; back comes what the same work does not need."""
    taken = np.zeros(len(table.rows), np.bool_)
    back = np.zeros(len(table.rows))
    inside = Inside(table)
    for call in paths.calls:
        mine = inside.positions(call.row)
        if call.known and len(mine):
            taken[mine] = True
            back[mine] = table.ns[mine] * _comes_back(table, call.row, int(table.ns[mine].sum()))
    return taken, back


def _comes_back(table: Kernels, row: int, ns: int) -> float:
    """Share of a slow call's device time that a kernel at :data:`REACHED` of the roof, in a
    half-wide format, does not need."""
    gpu, done = table.gpu, work_of(table, row)
    peak = gpus.peak_flops(gpu, "bf16") or gpus.peak_flops(gpu, "fp16") if gpu else None
    if gpu is None or done is None or peak is None or ns <= 0:
        return COMES_BACK
    roof = Roof(REACHED * peak, REACHED * gpu.bandwidth_gb_s * 1e9)
    return max(0.0, 1.0 - roof.seconds(done)[0] * 1e9 / ns)
