"""Loops over experts: the same products again and again, each with the rows that chose its expert.

A program that calls its experts one by one gathers rows, multiplies them with that expert's
weights, and scatters the results back, and then does the same for the next one.  In a trace that
is a run of iterations whose weights have the same sizes and whose numbers of rows differ.  Layers
that repeat have other products between their experts, so each layer's loop is a run of its own.

A grouped product does a whole run at once.  What it saves is the idle device beside the loop's
launches and synchronisations, and of its products the time that small ones take beyond the roof.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Final

import numpy as np

from brim.diagnose.trace.blame import LOOP
from brim.diagnose.trace.flops import input_shapes
from brim.diagnose.trace.host import HostSide
from brim.diagnose.trace.kernels import Kind
from brim.diagnose.trace.loss import REACHED, Claim, claim
from brim.diagnose.trace.ops import Operations
from brim.diagnose.trace.roofline import Call
from brim.diagnose.trace.table import Kernels
from brim.diagnose.trace.timeline import Bool, Int64, Spans, union
from brim.record.kineto import HostKind

FEWEST: Final = 4
"""Iterations of equal products in a row from which on they are a loop over experts."""

_GATHERS: Final = ("index", "index_select", "gather", "masked_select")
_SCATTERS: Final = (
    "index_add_", "index_add", "index_put_", "index_copy_", "scatter_add_", "scatter_add",
    "masked_scatter_",
)  # fmt: skip
_PRODUCTS: Final = {"mm": 1, "addmm": 2, "bmm": 1}
"""Operation → which of its inputs the weights are."""

Signature = tuple[tuple[int, ...], ...]
"""Sizes of the weights of an iteration's products."""


@dataclass(frozen=True, slots=True)
class Loop:
    """One run of iterations on one thread."""

    thread: int
    start: int
    end: int
    """ns"""
    rows: tuple[int, ...]
    """Rows that each iteration multiplies."""


@dataclass(slots=True)
class _Iteration:
    """What lies between two scatters."""

    start: int
    end: int
    gathers: list[int]
    """Their starts."""
    products: list[tuple[int, int, tuple[int, ...]]]
    """(start, rows, sizes of the weights)"""

    @property
    def signature(self) -> Signature:
        return tuple(weights for _, _, weights in self.products)

    def tail(self, count: int) -> _Iteration | None:
        """Only its last ``count`` products, from the gather before them on; None without one."""
        kept = self.products[-count:]
        before = [start for start in self.gathers if kept and start <= kept[0][0]]
        return _Iteration(before[-1], self.end, before[-1:], kept) if before else None


class Loops:
    """The loops over experts in one trace."""

    def __init__(self, host: HostSide, operations: Operations) -> None:
        self.host, self.operations = host, operations

    @cached_property
    def found(self) -> list[Loop]:
        """Of forward passes, by thread and start."""
        threads = np.unique(self.host.events.thread[self._wanted])
        return [loop for t in threads.tolist() for loop in _loops(t, list(self._iterations(t)))]

    @cached_property
    def _kinds(self) -> list[str]:
        """Per name of the trace: ``gather``, ``scatter``, an operation of products, or empty."""
        return [_kind(name) for name in self.host.trace.names]

    @cached_property
    def _wanted(self) -> Int64:
        names = np.array([bool(kind) for kind in self._kinds], np.bool_)
        host = self.host.events
        return np.flatnonzero(names[host.name] & (host.kind == HostKind.OP))

    def _iterations(self, thread: int) -> Iterator[_Iteration]:
        host = self.host.events
        rows = self._wanted[host.thread[self._wanted] == thread]
        rows = rows[np.argsort(host.start[rows], kind="stable")]
        current: _Iteration | None = None
        for row in rows.tolist():
            start, kind = int(host.start[row]), self._kinds[host.name[row]]
            current = current or _Iteration(start, start, [], [])
            if kind == "gather":
                current.gathers.append(start)
            elif kind == "scatter":
                current.end = int(host.end[row])
                yield current
                current = None
            elif (product := self._product(row, kind)) is not None:
                current.products.append((start, *product))

    def _product(self, row: int, kind: str) -> tuple[int, tuple[int, ...]] | None:
        """(rows, sizes of the weights); None where they were not recorded."""
        dims = int(self.host.events.dims[row])
        shapes = input_shapes(self.host.trace.dims[dims]) if dims >= 0 else []
        at = _PRODUCTS[kind]
        if len(shapes) <= at or len(shapes[at - 1]) < 2:
            return None
        return shapes[at - 1][-2], tuple(shapes[at])

    @cached_property
    def spans(self) -> dict[int, Spans]:
        """Thread → the moments inside loops, and inside the backward of what they recorded."""
        spans = {t: _spans(self.found, t) for t in sorted({loop.thread for loop in self.found})}
        for thread in self.operations.backward_threads if self.found else ():
            rows = self._backward(thread, spans)
            if len(rows):
                mine = union(self.host.events.start[rows], self.host.events.end[rows])
                spans[thread] = spans.get(thread, Spans()) | mine
        return spans

    def _backward(self, thread: int, forward: dict[int, Spans]) -> Int64:
        """Nodes of autograd whose forward ran in a loop: they carry its sequence numbers."""
        host = self.host.events
        recorded = np.flatnonzero((host.kind == HostKind.OP) & (host.sequence >= 0))
        inside = self.host.begins_in(recorded, forward)
        nodes = self.operations.nodes(thread)
        return nodes[np.isin(host.sequence[nodes], host.sequence[recorded[inside]])]

    def holds(self, launch: Int64) -> Bool:
        """Whether each launch (a host row, or -1) is inside a loop; shape as ``launch``."""
        return self.host.begins_in(launch, self.spans)

    def evidence(self) -> list[str]:
        if not self.found:
            return []
        rows = [count for loop in self.found for count in loop.rows]
        longest = max(len(loop.rows) for loop in self.found)
        return [
            f"{len(self.found):,} loops of up to {longest} experts: each expert gathers its rows "
            f"({min(rows):,} to {max(rows):,}), multiplies them and scatters them back by itself"
        ]


def _kind(name: str) -> str:
    short = name.removeprefix("aten::")
    if short == name:
        return ""
    if short in _PRODUCTS:
        return short
    return "gather" if short in _GATHERS else "scatter" if short in _SCATTERS else ""


def _loops(thread: int, iterations: Sequence[_Iteration]) -> Iterator[Loop]:
    """Runs of iterations with the same weights' sizes; what stands before a loop is cut off its
    first iteration."""
    run: list[_Iteration] = []
    for before, this in pairwise([_Iteration(0, 0, [], []), *iterations]):
        alike = bool(run) and this.signature == run[-1].signature
        if not alike:
            yield from _as_loop(thread, run)
            first = before.tail(len(this.products)) if this.products else None
            fits = first is not None and first.signature == this.signature
            run = [first] if fits and first is not None else []
        if this.products and this.gathers:
            run.append(this)
    yield from _as_loop(thread, run)


def _as_loop(thread: int, run: Sequence[_Iteration]) -> Iterator[Loop]:
    rows = tuple(iteration.products[0][1] for iteration in run)
    if len(run) >= FEWEST and len(set(rows)) > 1:
        yield Loop(thread, run[0].start, run[-1].end, rows)


def _spans(loops: Sequence[Loop], thread: int) -> Spans:
    mine = [loop for loop in loops if loop.thread == thread]
    return union(
        np.array([loop.start for loop in mine], np.int64),
        np.array([loop.end for loop in mine], np.int64),
    )


def expert_loops(table: Kernels, free: Bool, *, calls: Sequence[Call], loops: Loops) -> Claim:
    """Products inside loops, as far as they stay below what a grouped product reaches."""
    back = np.zeros(len(table.rows))
    for call in calls:
        if call.roof_ns is not None and call.ns > 0:
            share = max(0.0, 1.0 - call.roof_ns / call.ns / REACHED)
            back[call.members] = table.ns[call.members] * share
    taken = loops.holds(table.launch) & free & (table.kind == Kind.MATMUL) & (back > 0)
    return claim(table, LOOP, taken, back, loops.evidence())
