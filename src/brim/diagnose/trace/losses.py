"""Busy time that does less than it could: precision, attention, slow kernels, recompute, chains.

Every kernel's time counts for at most one loss, and of it only the part that a cure would give
back.  Padding cannot be seen in a trace: only with a measured share from outside.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from brim.diagnose.trace.device import DeviceSide
from brim.diagnose.trace.flops import Roof, Work, input_shapes, work
from brim.diagnose.trace.host import HostSide
from brim.diagnose.trace.kernels import Kernel, Kind, classify
from brim.diagnose.trace.ops import Operations
from brim.diagnose.trace.tables import Bound
from brim.diagnose.trace.timeline import Int64, union
from brim.hardware import gpus
from brim.hardware.gpus import Gpu
from brim.record.kineto import DeviceKind

Float64 = npt.NDArray[np.float64]
Bool = npt.NDArray[np.bool_]

ORDINARY_UTILISATION: Final = 0.6
"""Share of a kernel's time that is arithmetic, where its work is not known."""
COMPUTE_BOUND: Final = 0.3
"""From this share of its peak on a matrix product is bound by arithmetic."""
REACHED: Final = 0.5
"""Share of a roof that an ordinary kernel surely reaches."""
SLOW_BELOW: Final = 0.10
"""An operation under this share of its roof is slow."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Recoverable kernel time of one cause."""

    cause: str
    ns: float
    """Recoverable."""
    involved_ns: float
    """All time of the kernels concerned."""
    kernels: int
    evidence: list[str] = field(default_factory=list)
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Device events concerned."""


class Kernels:
    """The window's compute kernels on all streams, by stream and start."""

    def __init__(self, device: DeviceSide, host: HostSide, operations: Operations) -> None:
        self.device, self.host, self.operations = device, host, operations
        low, high = device.window
        events = device.events
        inside = (events.start < high) & (events.end > low)
        keep = inside & (events.kind == DeviceKind.KERNEL) & (device.kinds != Kind.COMM)
        rows = np.flatnonzero(keep)
        self.rows: Int64 = rows[np.lexsort((events.start[rows], events.stream[rows]))]
        self.ns: Int64 = events.end[self.rows] - events.start[self.rows]

    @cached_property
    def classes(self) -> list[Kernel]:
        """Per name of the trace, used or not."""
        return [classify(name) for name in self.device.trace.names]

    def of_class(self, get: str) -> npt.NDArray[Any]:
        values = np.array([getattr(c, get) for c in self.classes])
        return values[self.device.events.name[self.rows]]

    @cached_property
    def kind(self) -> npt.NDArray[np.uint8]:
        return self.device.kinds[self.rows]

    @cached_property
    def dtype(self) -> npt.NDArray[np.str_]:
        return self.of_class("dtype")

    @cached_property
    def eager(self) -> Bool:
        """Launched by ATen one operation at a time."""
        eager: Bool = (self.of_class("library") == "aten") & ~self.of_class("fused")
        return eager

    @cached_property
    def launch(self) -> Int64:
        return self.host.launch[self.rows]

    @cached_property
    def operation(self) -> Int64:
        """Host row of the innermost operation, or -1."""
        return self.operations.around(self.launch)

    @cached_property
    def shaped(self) -> Int64:
        """Host row of the nearest operation with input sizes, or -1."""
        return self.operations.shaped(self.operation)

    @cached_property
    def gpu(self) -> Gpu | None:
        info = self.device.trace.devices.get(self.device.main_device)
        if info is None:
            return None
        return gpus.identify(
            name=info.name,
            capability=info.capability,
            sm_count=info.sm_count or None,
            memory_bytes=info.memory_bytes or None,
        )

    def operation_name(self, host_row: int) -> str:
        return self.device.trace.names[self.host.events.name[host_row]] if host_row >= 0 else ""


def losses(table: Kernels) -> list[Loss]:
    """All losses; a kernel is counted in the first that claims it."""
    free = np.ones(len(table.rows), np.bool_)
    found = []
    for rule in (recompute, attention, precision, slow, unfused):
        loss, taken = rule(table, free)
        free &= ~taken
        if loss is not None:
            found.append(loss)
    return found


def _loss(
    table: Kernels, cause: str, taken: Bool, back: Float64, evidence: list[str]
) -> tuple[Loss | None, Bool]:
    if not taken.any():
        return None, taken
    return (
        Loss(
            cause=cause,
            ns=float(back[taken].sum()),
            involved_ns=float(table.ns[taken].sum()),
            kernels=int(taken.sum()),
            evidence=evidence,
            rows=table.rows[taken],
        ),
        taken,
    )


def recompute(table: Kernels, free: Bool) -> tuple[Loss | None, Bool]:
    """Kernels of a forward that runs again inside the backward."""
    host = table.host.events
    again = table.operations.recomputed
    taken = np.zeros(len(table.rows), np.bool_)
    for thread in table.operations.backward_threads:
        rows = np.flatnonzero(again & (host.thread == thread))
        spans = union(host.start[rows], host.end[rows])
        mine = (table.launch >= 0) & (host.thread[np.maximum(table.launch, 0)] == thread)
        taken |= mine & spans.contains(host.start[np.maximum(table.launch, 0)])
    taken &= free
    evidence = [f"{int(taken.sum()):,} kernels of a second forward run inside the backward"]
    return _loss(table, "compute.recompute", taken, table.ns.astype(np.float64), evidence)


def attention(table: Kernels, free: Bool) -> tuple[Loss | None, Bool]:
    """Softmax over scores in memory, with all that runs between its two matrix products."""
    kind, taken = table.kind, np.zeros(len(table.rows), np.bool_)
    products = np.flatnonzero(kind == Kind.MATMUL)
    if not len(products):
        return None, taken
    stream = table.device.events.stream[table.rows]
    blocks = 0
    for at in np.flatnonzero((kind == Kind.SOFTMAX) & table.eager & free):
        after = int(np.searchsorted(products, at))
        if after == 0 or after == len(products) or not _over_scores(table, int(at)):
            continue
        first, last = int(products[after - 1]), int(products[after])
        if last - first <= _LONGEST_BLOCK and stream[first] == stream[last]:
            taken[first + 1 : last] = True
            blocks += 1
    taken &= free
    evidence = [f"{blocks:,} softmax calls over attention scores that were written to memory"]
    return _loss(table, "compute.attention", taken, table.ns.astype(np.float64), evidence)


_LONGEST_BLOCK = 16


def _over_scores(table: Kernels, at: int) -> bool:
    """Whether the softmax is over (…, queries, keys) and not over classes."""
    name = table.device.trace.names[table.device.events.name[table.rows[at]]]
    if "LogSoftMax" in name or "log_softmax" in name:
        return False
    row = int(table.shaped[at])
    dims = int(table.host.events.dims[row]) if row >= 0 else -1
    if dims < 0:
        return True
    sizes = next((s for s in input_shapes(table.device.trace.dims[dims]) if len(s) >= 2), [])
    return len(sizes) >= 3 and sizes[-1] >= 16


def precision(table: Kernels, free: Bool) -> tuple[Loss | None, Bool]:
    """Matrix products and convolutions in plain fp32 where the device has faster formats.

    Only formats that need no other change count (TF32, bf16): on Volta and Turing the step to
    fp16 needs loss scaling and changes the numbers, so it is not called a fault.
    """
    wanted = np.isin(table.kind, (Kind.MATMUL, Kind.CONV)) & (table.dtype == "fp32") & free
    fast = _fast_format(table)
    if fast is None or not wanted.any():
        return None, np.zeros(len(table.rows), np.bool_)
    back = _won(table, wanted, fast)
    evidence = [
        f"{int(wanted.sum()):,} matrix products and convolutions run in plain fp32; the device "
        f"does {fast.ratio:.0f} times as much in {fast.name}"
    ]
    return _loss(table, "compute.precision", wanted, back, evidence)


@dataclass(frozen=True, slots=True)
class _Fast:
    name: str
    ratio: float
    """Peak in this format over the peak in fp32."""
    peak: float | None
    """Peak in this format, FLOP/s, where it is known."""
    plain: float = 0.0
    """Peak in fp32, FLOP/s."""
    bandwidth: float = 0.0
    """Of the device's memory, bytes/s; 0 where it is not known."""


def _fast_format(table: Kernels) -> _Fast | None:
    """The fastest format that fp32 code may use by a switch; from Ampere on every NVIDIA GPU has
    TF32 at eight times fp32, also one that the table of GPUs does not hold."""
    gpu, info = table.gpu, table.device.trace.devices.get(table.device.main_device)
    if gpu is None:
        ampere = info is not None and info.capability >= (8, 0) and "AMD" not in info.name
        return _Fast("tf32", 8.0, None) if ampere else None
    plain = gpus.peak_flops(gpu, "fp32")
    for name in ("tf32", "bf16"):
        peak = gpus.peak_flops(gpu, name)
        if peak is not None and plain is not None and peak > plain:
            return _Fast(name, peak / plain, peak, plain, gpu.bandwidth_gb_s * 1e9)
    return None


def _won(table: Kernels, wanted: Bool, fast: _Fast) -> Float64:
    """Nanoseconds of each kernel that the faster format saves: what the same work takes at
    :data:`REACHED` of the roof, where the work is known; else an ordinary kernel's share.  A
    kernel far below its own peak is not held up by arithmetic, and wins less."""
    factor = min(8.0, max(1.0, REACHED * fast.ratio))
    won = np.asarray(table.ns * ORDINARY_UTILISATION * (1.0 - 1.0 / factor), np.float64)
    if fast.peak is None:
        return won
    roof = Roof(REACHED * fast.peak, REACHED * fast.bandwidth)
    for at in np.flatnonzero(wanted & (table.shaped >= 0)):
        done = work_of(table, int(table.shaped[at]))
        if done is not None and table.ns[at] > 0:
            bound = min(1.0, done.flops / fast.plain / (table.ns[at] * 1e-9) / COMPUTE_BOUND)
            won[at] = bound * max(0.0, table.ns[at] - roof.seconds(done)[0] * 1e9)
    return won


def work_of(table: Kernels, host_row: int) -> Work | None:
    """FLOPs and bytes of one call of an operation."""
    trace, events = table.device.trace, table.host.events
    dims, types = int(events.dims[host_row]), int(events.types[host_row])
    if dims < 0:
        return None
    kinds = trace.types[types] if types >= 0 else "[]"
    return work(table.operation_name(host_row), trace.dims[dims], kinds)


_NAIVE = (
    "vol2col",
    "col2vol",
    "slow_conv",
    "naive_conv",
    "conv_depthwise3d",
    "implicit_convolvend",
)


def slow(table: Kernels, free: Bool) -> tuple[Loss | None, Bool]:
    """Operations far below their roof, and kernels that are known as the slow way."""
    taken = np.zeros(len(table.rows), np.bool_)
    back = np.zeros(len(table.rows))
    evidence: list[str] = []
    names = np.array([any(n in name.lower() for n in _NAIVE) for name in table.device.trace.names])
    naive = names[table.device.events.name[table.rows]] & free
    if naive.any():
        taken |= naive
        back[naive] = table.ns[naive] * 0.9
        evidence.append(f"{int(naive.sum()):,} launches of a generic convolution kernel")
    for group in groups(table):
        if group.attainable is None or group.attainable >= SLOW_BELOW or group.kind != Kind.CONV:
            continue
        mine = group.members[free[group.members] & ~taken[group.members]]
        taken[mine] = True
        back[mine] = table.ns[mine] * (1.0 - group.attainable / REACHED)
        evidence.append(f"{group.operation} reaches {group.attainable:.1%} of its roof")
    return _loss(table, "compute.slow-kernel", taken, back, evidence[:3])


def unfused(table: Kernels, free: Bool) -> tuple[Loss | None, Bool]:
    """Chains of eager element-wise kernels.

    ``n`` operations of two inputs and one output each move ``3n`` arrays one by one and ``n + 2``
    as one kernel, so ``(2n - 2) / 3n`` of a chain's time comes back.
    """
    memory_bound = np.isin(table.kind, (Kind.ELEMENTWISE, Kind.REDUCE)) & table.eager & free
    stream = table.device.events.stream[table.rows]
    first = memory_bound & ~np.concatenate(
        (np.zeros(1, np.bool_), memory_bound[:-1] & (stream[1:] == stream[:-1]))
    )
    chain = np.cumsum(first)[memory_bound]
    length = np.bincount(chain)
    back = np.zeros(len(table.rows))
    n = length[chain].astype(np.float64)
    back[memory_bound] = table.ns[memory_bound] * (2.0 * n - 2.0) / (3.0 * n)
    taken = back > 0
    chains = int((length >= 2).sum())
    evidence = [
        f"{int(taken.sum()):,} element-wise kernels run one by one in {chains:,} chains"
        if chains
        else ""
    ]
    return _loss(table, "compute.unfused", taken, back, evidence)


@dataclass(frozen=True, slots=True)
class Group:
    """All kernels of one operation with one set of input sizes."""

    operation: str
    dims: str
    kind: int
    calls: int
    ns: int
    members: Int64
    """Positions in the table."""
    work: Work | None
    attainable: float | None
    """Reached share of the roof, or None where peak or work are not known."""
    bound: Bound


def groups(table: Kernels) -> list[Group]:
    """Kernels by (operation, input sizes), longest first; only those with recorded sizes."""
    events = table.host.events
    at = np.flatnonzero(table.shaped >= 0)
    if not len(at):
        return []
    rows = table.shaped[at]
    key = events.name[rows].astype(np.int64) << 32 | events.dims[rows].astype(np.int64)
    _, inverse = np.unique(key, return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    cuts = np.flatnonzero(np.diff(inverse[order])) + 1
    out = [_group(table, at[part]) for part in np.split(order, cuts)]
    return sorted(out, key=lambda group: -group.ns)


def _group(table: Kernels, members: Int64) -> Group:
    row = int(table.shaped[members[0]])
    calls = len(np.unique(table.shaped[members]))
    ns = int(table.ns[members].sum())
    main = members[int(np.argmax(table.ns[members]))]
    done = work_of(table, row)
    attainable, bound = _attained(table, str(table.dtype[main]), done, calls, ns)
    return Group(
        operation=table.operation_name(row),
        dims=table.device.trace.dims[int(table.host.events.dims[row])],
        kind=int(table.kind[main]),
        calls=calls,
        ns=ns,
        members=members,
        work=done,
        attainable=attainable,
        bound=bound,
    )


def _attained(
    table: Kernels, dtype: str, done: Work | None, calls: int, ns: int
) -> tuple[float | None, Bound]:
    gpu = table.gpu
    if gpu is None or done is None or ns <= 0:
        return None, ""
    peak = gpus.peak_flops(gpu, dtype) if dtype else None
    if peak is None:
        return None, ""
    seconds, bound = Roof(peak, gpu.bandwidth_gb_s * 1e9).seconds(done)
    return calls * seconds / (ns * 1e-9), bound
