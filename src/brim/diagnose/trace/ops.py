"""Which operation a launch belongs to, and which line of the program called it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cached_property
from typing import Final

import numpy as np

from brim.diagnose.trace.timeline import Bool, Int64, union
from brim.record.findings import Where
from brim.record.kineto import HostEvents, HostKind, Trace


class Nest:
    """Spans of one thread that nest: the innermost around a moment, found by climbing.

    ``rows`` are the host's rows, sorted by start with parents first.
    """

    def __init__(self, host: HostEvents, rows: Int64) -> None:
        self.rows = rows
        self.start, self.end = host.start[rows], host.end[rows]
        self.parent = _parents(self.start.tolist(), self.end.tolist())

    def innermost(self, time: Int64) -> Int64:
        """Position (not row) of the innermost span around each time, or -1."""
        if not len(self.rows):
            return np.full(len(time), -1, np.int64)
        at = np.searchsorted(self.start, time, side="right") - 1
        while True:
            over = (at >= 0) & (self.end[np.maximum(at, 0)] <= time)
            if not over.any():
                return at
            at[over] = self.parent[at[over]]

    def chain(self, position: int) -> Iterable[int]:
        """``position`` and all around it, innermost first."""
        while position >= 0:
            yield position
            position = int(self.parent[position])


def _parents(start: list[int], end: list[int]) -> Int64:
    """The span around each span, or -1; spans are sorted by start, the longer first.

    A loop, because traces in whole µs do not nest strictly: children outlive their parents by the
    rounding.
    """
    parent = [-1] * len(start)
    stack: list[int] = []
    until: list[int] = []
    for index, begin in enumerate(start):
        while until and until[-1] <= begin:
            until.pop()
            stack.pop()
        if stack:
            parent[index] = stack[-1]
        stack.append(index)
        until.append(end[index])
    return np.array(parent, np.int64)


class Operations:
    """The framework's operations around launches."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._nests: dict[int, Nest] = {}

    def nest(self, thread: int) -> Nest:
        """The operations of one thread that call the runtime (most only compute sizes)."""
        if thread not in self._nests:
            host = self.trace.host
            mine = host.thread == thread
            rows = np.flatnonzero(mine & (host.kind == HostKind.OP))
            calls = host.start[mine & (host.kind == HostKind.RUNTIME)]
            first, behind = np.searchsorted(calls, (host.start[rows], host.end[rows]))
            self._nests[thread] = Nest(host, rows[behind > first])
        return self._nests[thread]

    def around(self, rows: Int64) -> Int64:
        """Host row of the innermost operation around each host row, or -1; shape as ``rows``."""
        host = self.trace.host
        out = np.full(len(rows), -1, np.int64)
        for thread in np.unique(host.thread[rows[rows >= 0]]):
            nest = self.nest(int(thread))
            mine = np.flatnonzero((rows >= 0) & (host.thread[np.maximum(rows, 0)] == thread))
            at = nest.innermost(host.start[rows[mine]])
            out[mine] = (
                np.where(at >= 0, nest.rows[np.maximum(at, 0)], -1) if len(nest.rows) else -1
            )
        return out

    def shaped(self, operations: Int64) -> Int64:
        """The nearest operation at or around each one that has ``Input Dims``, or -1."""
        return self.climb(operations, self.trace.host.dims >= 0)

    def climb(self, operations: Int64, wanted: Bool) -> Int64:
        """The nearest operation at or around each one that is ``wanted``, or -1.

        ``wanted``: shape (host events,).
        """
        host = self.trace.host
        out = operations.copy()
        for thread in np.unique(host.thread[operations[operations >= 0]]):
            nest = self.nest(int(thread))
            mine = np.flatnonzero((out >= 0) & (host.thread[np.maximum(out, 0)] == thread))
            at = np.searchsorted(nest.rows, out[mine])
            while True:
                other = (at >= 0) & ~wanted[nest.rows[np.maximum(at, 0)]]
                if not other.any():
                    break
                at[other] = nest.parent[at[other]]
            out[mine] = np.where(at >= 0, nest.rows[np.maximum(at, 0)], -1)
        return out

    @cached_property
    def backward_threads(self) -> list[int]:
        """Threads on which autograd evaluates nodes."""
        nodes = self._named("autograd::engine::evaluate_function")
        return [int(t) for t in np.unique(self.trace.host.thread[nodes])]

    @cached_property
    def recomputed(self) -> Bool:
        """Operations of a forward that run again inside the backward; shape (host events,).

        Autograd numbers the operations that it records.  Inside a node that is evaluated nothing
        is recorded but a checkpoint's second forward (nodes carry their forward's thread).
        """
        host = self.trace.host
        recorded = (host.kind == HostKind.OP) & (host.sequence >= 0) & (host.forward_thread == 0)
        recorded[self._named("autograd::", "torch::autograd::")] = False
        again = np.zeros(len(host), np.bool_)
        nodes = self._named("autograd::engine::evaluate_function")
        for thread in self.backward_threads:
            mine = nodes[host.thread[nodes] == thread]
            rows = np.flatnonzero(recorded & (host.thread == thread))
            again[rows] = union(host.start[mine], host.end[mine]).contains(host.start[rows])
        return again

    def nodes(self, thread: int) -> Int64:
        """Rows of the nodes that autograd evaluates on a thread."""
        rows = self._named("autograd::engine::evaluate_function")
        return np.asarray(rows[self.trace.host.thread[rows] == thread], np.int64)

    def _named(self, *prefixes: str) -> Int64:
        wanted = [i for i, name in enumerate(self.trace.names) if name.startswith(prefixes)]
        return np.flatnonzero(np.isin(self.trace.host.name, wanted))


_FRAME: Final = re.compile(r"^(?P<file>.+\.pyx?)\((?P<line>\d+)\): (?P<function>.+)$")
_LIBRARIES: Final = re.compile(
    r"(?:^|/)(?:torch|transformers|accelerate|liger_kernel|lightning|pytorch_lightning|deepspeed|"
    r"trl|peft|swift|numpy|scipy|PIL|tqdm|datasets|torchvision|triton|apex|xformers|flash_attn|"
    r"huggingface_hub|multiprocessing|concurrent|importlib|asyncio)/"
    r"|(?:^|/)(?:threading|contextlib|functools|runpy|queue|socket|selectors|random|copy)\.py\("
    r"|^<"
)


def frame(text: str) -> Where | None:
    """``train.py(12): step`` as a place."""
    match = _FRAME.match(text)
    if match is None:
        return None
    return Where(file=match["file"], line=int(match["line"]), function=match["function"])


class Lines:
    """The program's lines at given moments, from Python frames or recorded call stacks."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self._nests: dict[int, Nest] = {}
        self._with_stack: dict[int, Nest] = {}

    def _nest(self, thread: int) -> Nest:
        if thread not in self._nests:
            host = self.trace.host
            rows = np.flatnonzero((host.thread == thread) & (host.kind == HostKind.PYTHON))
            self._nests[thread] = Nest(host, rows)
        return self._nests[thread]

    def most(self, thread: int, times: Int64, weights: Int64) -> Where | None:
        """The line of the program (not of a library, if possible) with most weight."""
        heaviest = np.argsort(-weights, kind="stable")[:500]
        found: Counter[Where] = Counter()
        for time, weight in zip(times[heaviest], weights[heaviest], strict=True):
            place = self._at(thread, int(time))
            if place is not None:
                found[place] += int(weight)
        return found.most_common(1)[0][0] if found else None

    def _at(self, thread: int, time: int) -> Where | None:
        nest = self._nest(thread)
        if len(nest.rows):
            at = int(nest.innermost(np.array([time], np.int64))[0])
            names = [self.trace.names[self.trace.host.name[nest.rows[p]]] for p in nest.chain(at)]
            return choose(names)
        return self._from_stack(thread, time)

    def _stacked(self, thread: int) -> Nest:
        """The operations of one thread whose call stack was recorded."""
        if thread not in self._with_stack:
            host = self.trace.host
            rows = np.flatnonzero((host.thread == thread) & (host.stack >= 0))
            self._with_stack[thread] = Nest(host, rows)
        return self._with_stack[thread]

    def _from_stack(self, thread: int, time: int) -> Where | None:
        if not self.trace.stacks:
            return None
        host, nest = self.trace.host, self._stacked(thread)
        at = int(nest.innermost(np.array([time], np.int64))[0])
        for position in nest.chain(at):
            stack = int(host.stack[nest.rows[position]])
            if stack >= 0:
                return choose(self.trace.stacks[stack].split(";"))
        return None


def choose(frames: list[str]) -> Where | None:
    """The innermost frame of the program itself, else the innermost that is a line at all."""
    places = [(text, place) for text in frames if (place := frame(text)) is not None]
    own = [place for text, place in places if not _LIBRARIES.search(text)]
    return own[0] if own else places[0][1] if places else None
