"""Device time by the program's modules, for traces with Python stacks."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from brim.diagnose.trace.kernels import Kind
from brim.diagnose.trace.ops import Nest
from brim.diagnose.trace.rank import Rank
from brim.diagnose.trace.tables import ModuleRow
from brim.diagnose.trace.timeline import Int64
from brim.record.kineto import HostKind

_MODULE = re.compile(r"^nn\.Module: (.+?)_\d+$")


def module_rows(ranks: Sequence[Rank]) -> list[ModuleRow]:
    """Kernels by the class of the innermost ``nn.Module`` that launched them, longest first.

    A backward kernel belongs to the module whose forward has its node's sequence number.
    """
    time: dict[str, Counter[int]] = defaultdict(Counter)
    launches: Counter[str] = Counter()
    for rank in ranks:
        owner, names = _owners(rank)
        for module in np.unique(owner[owner >= 0]):
            mine = owner == module
            launches[names[module]] += int(mine.sum())
            for kind in np.unique(rank.kernels.kind[mine]):
                ns = int(rank.kernels.ns[mine & (rank.kernels.kind == kind)].sum())
                time[names[module]][int(kind)] += ns
    whole = float(sum(rank.window_ns for rank in ranks))
    out = [
        ModuleRow(
            module=module,
            device_us=sum(kinds.values()) / 1e3,
            share=sum(kinds.values()) / whole,
            kernels=launches[module],
            kinds={Kind(kind).label: ns / 1e3 for kind, ns in kinds.most_common()},
        )
        for module, kinds in time.items()
    ]
    return sorted(out, key=lambda row: -row.device_us)


def _owners(rank: Rank) -> tuple[Int64, list[str]]:
    """For each kernel of the rank's table the index of its module's class, or -1."""
    host, names = rank.trace.host, rank.trace.names
    matches = [_MODULE.match(name) for name in names]
    classes = list(dict.fromkeys(m[1] for m in matches if m))
    of_name = np.array([classes.index(m[1]) if m else -1 for m in matches], np.int64)
    rows = np.flatnonzero((host.kind == HostKind.PYTHON) & (of_name[host.name] >= 0))
    owner = np.full(len(rank.kernels.rows), -1, np.int64)
    if not len(rows):
        return owner, classes
    launch = rank.kernels.launch
    for thread in np.unique(host.thread[rows]):
        nest = Nest(host, rows[host.thread[rows] == thread])
        mine = np.flatnonzero((launch >= 0) & (host.thread[np.maximum(launch, 0)] == thread))
        at = nest.innermost(host.start[launch[mine]])
        module = of_name[host.name[nest.rows[np.maximum(at, 0)]]]
        owner[mine] = np.where(at >= 0, module, -1)
    return _with_backward(rank, owner), classes


def _with_backward(rank: Rank, owner: Int64) -> Int64:
    """Give backward kernels to the module of the forward with the same sequence number."""
    host, operation = rank.trace.host, rank.kernels.operation
    sequence = np.where(operation >= 0, host.sequence[np.maximum(operation, 0)], -1)
    forward = {int(s): int(o) for s, o in zip(sequence, owner, strict=True) if s >= 0 and o >= 0}
    if not forward:
        return owner
    out = owner.copy()
    for at in np.flatnonzero((owner < 0) & (operation >= 0)):
        nest = rank.operations.nest(int(host.thread[operation[at]]))
        position = int(np.searchsorted(nest.rows, operation[at]))
        for up in nest.chain(position):
            number = int(host.sequence[nest.rows[up]])
            if number in forward:
                out[at] = forward[number]
                break
    return out
