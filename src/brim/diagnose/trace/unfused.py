"""Memory-bound kernels that run one by one where one kernel would do."""

from __future__ import annotations

from typing import Final

import numpy as np

from brim.diagnose.trace.flops import elements, input_shapes
from brim.diagnose.trace.kernels import Kind
from brim.diagnose.trace.loss import Claim, claim
from brim.diagnose.trace.table import Float64, Kernels
from brim.diagnose.trace.timeline import Bool

_GATES: Final = frozenset({"aten::silu", "aten::gelu", "aten::sigmoid"})
_GATES_BACK: Final = frozenset(f"{name}_backward" for name in _GATES)
_NEAR: Final = 5
"""Kernels between the parts of a gated activation: the products of its inputs."""


def unfused(table: Kernels, free: Bool) -> Claim:
    """Chains of eager element-wise kernels, gated activations, and sums before a norm.

    ``n`` operations of two inputs and one output each move ``3n`` arrays one by one and ``n + 2``
    as one kernel, so ``(2n - 2) / 3n`` of a chain's time comes back.  A gated activation is cut in
    two by the product of its other input: its forward moves 5 arrays and needs 3, its backward 9
    and needs 5.  A sum that a norm reads next could be made in the norm, which saves reading it:
    as much as a third of the sum's own traffic.
    """
    memory_bound = np.isin(table.kind, (Kind.ELEMENTWISE, Kind.REDUCE)) & table.eager & free
    share, chains = _chains(table, memory_bound)
    gates = _gated(table, memory_bound, share)
    _before_norms(table, memory_bound, share)
    taken = share > 0
    evidence = [
        f"{int(taken.sum()):,} element-wise kernels run one by one in {chains:,} chains"
        + (f" and {gates:,} gated activations" if gates else "")
        if chains or gates
        else ""
    ]
    return claim(table, "compute.unfused", taken, table.ns * share, evidence)


def _chains(table: Kernels, memory_bound: Bool) -> tuple[Float64, int]:
    """Share of each kernel's time that comes back, and how many chains there are."""
    stream = table.device.events.stream[table.rows]
    first = memory_bound & ~np.concatenate(
        (np.zeros(1, np.bool_), memory_bound[:-1] & (stream[1:] == stream[:-1]))
    )
    chain = np.cumsum(first)[memory_bound]
    length = np.bincount(chain)
    n = length[chain].astype(np.float64)
    share = np.zeros(len(table.rows))
    share[memory_bound] = (2.0 * n - 2.0) / (3.0 * n)
    return share, int((length >= 2).sum())


def _gated(table: Kernels, memory_bound: Bool, share: Float64) -> int:
    """Raise the share of the parts of gated activations; how many there are."""
    names = [table.operation_name(int(row)) for row in table.shaped]
    found = 0
    for at in np.flatnonzero(memory_bound).tolist():
        if names[at] in _GATES:
            parts = _parts(table, names, at, range(at + 1, at + 1 + _NEAR), 1)
            back = 2 / 5
        elif names[at] in _GATES_BACK:
            parts = _parts(table, names, at, range(at - 1, at - 1 - _NEAR, -1), 2)
            back = 4 / 9
        else:
            continue
        if parts and memory_bound[parts].all():
            found += 1
            share[[at, *parts]] = np.maximum(share[[at, *parts]], back)
    return found


def _parts(table: Kernels, names: list[str], at: int, near: range, count: int) -> list[int]:
    """Positions of the ``count`` products of equal sizes beside an activation, with nothing but
    matrix products in between; empty where there are fewer."""
    size, stream = _sizes(table, at), table.device.events.stream[table.rows]
    parts: list[int] = []
    for other in near:
        if not 0 <= other < len(names) or stream[other] != stream[at]:
            break
        if names[other] == "aten::mul" and size and _sizes(table, other) == size:
            parts.append(other)
            if len(parts) == count:
                return parts
        elif table.kind[other] != Kind.MATMUL:
            break
    return []


def _sizes(table: Kernels, at: int) -> list[int]:
    """Sizes of the first input of a kernel's call; empty where they were not recorded."""
    return next(iter(input_shapes(_dims(table, at))), [])


def _dims(table: Kernels, at: int) -> str:
    row = int(table.shaped[at])
    return table.device.trace.dims[table.host.events.dims[row]] if row >= 0 else "[]"


def _before_norms(table: Kernels, memory_bound: Bool, share: Float64) -> None:
    """Raise the share of single sums whose result a norm reads next."""
    stream = table.device.events.stream[table.rows]
    next_norm = (table.kind[1:] == Kind.NORM) & (stream[1:] == stream[:-1])
    for at in np.flatnonzero(memory_bound[:-1] & next_norm & (share[:-1] == 0.0)).tolist():
        size = _sizes(table, at)
        alike = bool(size) and elements(str([size])) == elements(str([_sizes(table, at + 1)]))
        if alike and table.operation_name(int(table.shaped[at])) == "aten::add":
            share[at] = 1 / 3
