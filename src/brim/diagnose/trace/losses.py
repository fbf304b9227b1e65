"""Busy time that does less than it could: precision, attention, slow kernels, recompute, chains.

Every kernel's time counts for at most one loss, and of it only the part that a cure would give
back.  Padding cannot be seen in a trace: only with a measured share from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from brim.diagnose.trace.attention import attention
from brim.diagnose.trace.loops import Loops, expert_loops
from brim.diagnose.trace.loss import Claim, Loss, claim
from brim.diagnose.trace.precision import precision
from brim.diagnose.trace.roofline import Call
from brim.diagnose.trace.slow import SlowOperations, slow
from brim.diagnose.trace.table import Kernels
from brim.diagnose.trace.timeline import Bool, union
from brim.diagnose.trace.unfused import unfused


def losses(
    table: Kernels, calls: Sequence[Call], paths: SlowOperations, loops: Loops
) -> list[Loss]:
    """All losses; a kernel is counted in the first that claims it."""
    free = np.ones(len(table.rows), np.bool_)
    found = []
    with_calls = (
        partial(slow, calls=calls, paths=paths),
        partial(expert_loops, calls=calls, loops=loops),
        partial(precision, calls=calls),
    )
    for rule in (recompute, attention, *with_calls, unfused):
        loss, taken = rule(table, free)
        free &= ~taken
        if loss is not None:
            found.append(loss)
    return found


def recompute(table: Kernels, free: Bool) -> Claim:
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
    return claim(table, "compute.recompute", taken, table.ns.astype(np.float64), evidence)
