"""From shares to findings: evidence in words, the line that did it, how sure it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.diagnose.causes import REPORTED_FROM, family
from brim.diagnose.trace.blame import LOOP, SHORT_NS, SLOW
from brim.diagnose.trace.comm import Straggling
from brim.diagnose.trace.context import TraceContext
from brim.diagnose.trace.host import State
from brim.diagnose.trace.kernels import Kind, copy_direction, is_pageable
from brim.diagnose.trace.rank import Rank
from brim.record.findings import Confidence, Finding, Where
from brim.units import duration, percent, size

MEMORY_FREE: Final = 0.3
"""From this free share of the device's memory on, recomputing activations is not needed."""
UNFUSED_FROM: Final = 0.06
"""What fusing would save is an estimate, and a plain, healthy transformer has some 5 % of it."""


@dataclass(frozen=True, slots=True)
class Job:
    """All ranks of one job, and what was made of them."""

    ranks: Sequence[Rank]
    context: TraceContext
    straggling: Straggling | None

    @property
    def worst(self) -> Callable[[str], Rank]:
        """The rank on which a cause takes most."""
        return lambda cause: max(self.ranks, key=lambda r: share_of(r, cause))


def share_of(rank: Rank, cause: str) -> float:
    return sum(share for (_, name), share in rank.shares.items() if name == cause)


def findings(
    job: Job, shares: dict[str, float], gains: Callable[[str, float], tuple[float, float]]
) -> list[Finding]:
    """One finding for each cause of at least :data:`REPORTED_FROM`, largest first.

    ``shares``: cause → mean share over the ranks.  ``gains``: cause, share → range of speed-up.
    """
    if all(rank.too_short or rank.is_start_up for rank in job.ranks):
        return []
    found = []
    for cause, share in shares.items():
        least = UNFUSED_FROM if cause == "compute.unfused" else REPORTED_FROM
        if share >= least and "." in cause and _is_fault(job, cause):
            rank = job.worst(cause)
            found.append(
                Finding(
                    cause=cause,
                    share=share,
                    gain=gains(cause, share),
                    confidence=_confidence(job, cause),
                    evidence=[line for line in _evidence(job, rank, cause) if line],
                    where=_where(rank, cause),
                )
            )
    return sorted(found, key=lambda finding: -finding.share)


def _is_fault(job: Job, cause: str) -> bool:
    """Recomputing activations is a fault only where memory was free."""
    if cause != "compute.recompute":
        return True
    free = memory_free(job)
    return free is not None and free >= MEMORY_FREE


def memory_free(job: Job) -> float | None:
    """Share of device memory that was free at the peak, where it is known."""
    if job.context.memory_free is not None:
        return job.context.memory_free
    shares = []
    for rank in job.ranks:
        device = rank.device.main_device
        info, reserved = rank.trace.devices.get(device), rank.trace.reserved_bytes.get(device)
        if info is not None and info.memory_bytes and reserved:
            shares.append(1.0 - reserved / info.memory_bytes)
    return min(shares) if shares else None


def _confidence(job: Job, cause: str) -> Confidence:
    few = sum(len(rank.steps) for rank in job.ranks) < 2
    if cause == "input.workers" and job.context.input_cause is None:
        return "low"  # the workers are not in the trace
    if cause.startswith("comm.straggler"):
        return "medium" if job.straggling and job.straggling.worst_share >= 0.7 else "low"
    if few or any(rank.trace.truncated for rank in job.ranks):
        return "low" if cause in ("host.launch", "compute.unfused") else "medium"
    if family(cause) == "compute" and cause != "compute.padding":
        return "medium"
    return "high"


def _where(rank: Rank, cause: str) -> Where | None:
    """The line that holds the host up most for this cause."""
    if cause in rank.context.places:
        return rank.context.places[cause]
    if cause == SLOW:
        return _slow_line(rank)
    timed = family(cause) in ("input", "host", "memory", "transfer") or cause == LOOP
    if not timed or cause == "host.launch":
        return None
    host, thread = rank.host.events, rank.host.loop_thread
    if cause in ("host.sync", "transfer.pageable") and rank.blame.charged:
        rows = np.array(list(rank.blame.charged), np.int64)
        weights = np.array(list(rank.blame.charged.values()), np.int64)
        thread = int(host.thread[rows[int(np.argmax(weights))]])
        mine = host.thread[rows] == thread
        return rank.lines.most(thread, host.start[rows[mine]], weights[mine])
    if thread is None:
        thread = rank.host.launching_threads[0] if rank.host.launching_threads else None
    if thread is None:
        return None
    labels = [label for label in rank.blame.by if rank.cause_of(label) == cause]
    ns = sum((rank.blame.by[label] for label in labels), np.zeros(len(rank.blame.gaps), np.int64))
    middle = (rank.blame.gaps.start + rank.blame.gaps.end) // 2
    return rank.lines.most(thread, middle[ns > 0], ns[ns > 0])


def _slow_line(rank: Rank) -> Where | None:
    """The line whose slow calls take most of the host's time (a backward's thread has none)."""
    host = rank.host.events
    rows = np.array([call.row for call in rank.slow.calls], np.int64)
    found = {}
    for thread in np.unique(host.thread[rows]).tolist():
        mine = rows[host.thread[rows] == thread]
        time = host.end[mine] - host.start[mine]
        place = rank.lines.most(thread, host.start[mine], time)
        if place is not None:
            found[place] = int(time.sum())
    return max(found, key=lambda place: found[place]) if found else None


def _evidence(job: Job, rank: Rank, cause: str) -> list[str]:
    rule = _RULES.get(cause) or _RULES.get(family(cause))
    lines = rule(job, rank, cause) if rule is not None else []
    if len(job.ranks) > 1 and not cause.startswith("comm.straggler"):
        low = min(share_of(r, cause) for r in job.ranks)
        lines.append(
            f"{percent(low)} to {percent(share_of(rank, cause))} over {len(job.ranks)} ranks, "
            f"most on rank {rank.trace.rank}"
        )
    return lines


def _idle_line(rank: Rank, cause: str, doing: str) -> str:
    ns = rank.idle.get(cause, 0)
    steps = max(1, len(rank.steps))
    return (
        f"the device is idle {duration(ns * 1e-9)} of {duration(rank.window_ns * 1e-9)} "
        f"while {doing} ({duration(ns * 1e-9 / steps)} per step)"
    )


def _input(job: Job, rank: Rank, cause: str) -> list[str]:
    if cause == "input.main-process":
        doing = "the training process itself loads or prepares the next batch"
        return [_idle_line(rank, cause, doing), *_top_spans(rank, State.INPUT_MAIN)]
    if cause == "input.startup":
        return [_idle_line(rank, cause, "the first batch is made; later batches are there in time")]
    lines = [_idle_line(rank, cause, "the training process waits for the loader's next batch")]
    if job.context.input_cause is None:
        lines.append(
            "the workers are not in the trace: whether they are too few, too slow, or wait for "
            "storage, a measured run tells"
        )
    return lines


def _top_spans(rank: Rank, state: State) -> list[str]:
    """The longest kinds of span in a state."""
    host, names = rank.host.events, rank.trace.names
    rows = np.flatnonzero(rank.host.state == state)
    if not len(rows):
        return []
    kinds, inverse = np.unique(host.name[rows], return_inverse=True)
    time = np.bincount(inverse, (host.end - host.start)[rows].astype(np.float64))
    at = int(np.argmax(time))
    return [
        f"{shorten(names[kinds[at]])}: {duration(time[at] * 1e-9)} "
        f"in {int((inverse == at).sum()):,} calls"
    ]


def shorten(name: str, limit: int = 90) -> str:
    """A name for a line of text: printable, one line, not too long."""
    plain = "".join(c if c.isprintable() else " " for c in name)
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def _launch(job: Job, rank: Rank, cause: str) -> list[str]:
    kernels, gaps = rank.kernels, rank.blame.gaps
    steps = max(1, len(rank.steps))
    short = rank.blame.by.get(cause, np.zeros(len(gaps), np.int64))[gaps.lengths <= SHORT_NS]
    mean = float(kernels.ns.mean()) if len(kernels.ns) else 0.0
    lines = [
        _idle_line(rank, cause, "the host prepares and launches operations"),
        f"{len(kernels.rows) / steps:,.0f} kernels per step, {duration(mean * 1e-9)} each on "
        f"average; {percent(float(short.sum()) / rank.window_ns)} in gaps under 30 µs",
    ]
    del job
    return lines


def _sync(job: Job, rank: Rank, cause: str) -> list[str]:
    host = rank.host
    calls = host.blocking
    low, high = rank.device.host_window
    inside = (calls.start >= low) & (calls.start < high)
    mine = inside & np.isin(calls.state, (State.SYNC, State.READ))
    steps = max(1, len(rank.steps))
    blocked = float((calls.end - calls.start)[mine].sum())
    guilty = sum(1 for row in rank.blame.charged if host.state[row] != State.TRANSFER)
    del job
    return [
        _idle_line(rank, cause, "or just after the host waits for the device's values"),
        f"{int(mine.sum()) / steps:,.0f} synchronisations per step block "
        f"{duration(blocked * 1e-9 / steps)}; {guilty:,} of them left the queue empty",
    ]


def _transfer(job: Job, rank: Rank, cause: str) -> list[str]:
    names, events = rank.trace.names, rank.trace.device
    low, high = rank.device.window
    copies = (rank.device.kinds == Kind.COPY) & (events.start >= low) & (events.start < high)
    crossing = np.array([copy_direction(n) in ("h2d", "d2h") for n in names])[events.name] & copies
    pageable = np.array([is_pageable(n) for n in names])[events.name] & crossing
    exposed, _ = rank.exposed_copies
    moved = int(np.maximum(events.n_bytes[crossing], 0).sum())
    del job
    return [
        _idle_line(rank, cause, "the host is inside a blocking copy, or just after one")
        if rank.idle.get(cause)
        else "",
        f"{percent(exposed / rank.window_ns)} of the time only copies run",
        f"{int(pageable.sum()):,} of {int(crossing.sum()):,} copies between host and device use "
        f"pageable memory; {size(moved)} in all",
    ]


def _memory(job: Job, rank: Rank, cause: str) -> list[str]:
    del job
    doing = "the host allocates or frees device memory"
    return [_idle_line(rank, cause, doing), *rank.memory.evidence]


def _host(job: Job, rank: Rank, cause: str) -> list[str]:
    del job
    doing = {
        "host.gc": "Python's garbage collector runs",
        "host.recompile": "code is compiled",
        "host.periodic": "a checkpoint, an evaluation or logging runs",
    }.get(cause, "the host does something else")
    state = {"host.recompile": State.COMPILE, "host.periodic": State.SAVE, "host.gc": State.GC}
    spans = _top_spans(rank, state[cause]) if cause in state else []
    return [_idle_line(rank, cause, doing), *spans]


def _compute(job: Job, rank: Rank, cause: str) -> list[str]:
    if cause == "compute.padding":
        return [f"{percent(job.context.padding or 0.0)} of the tokens are padding"]
    loss = next((loss for loss in rank.losses if loss.cause == cause), None)
    if cause == SLOW and rank.idle.get(cause):
        return [
            *(loss.evidence[:2] if loss is not None else rank.slow.evidence()),
            _idle_line(rank, cause, "the host launches them"),
        ]
    if cause == LOOP:
        doing = "the host goes from expert to expert"
        return [*rank.loops.evidence(), _idle_line(rank, cause, doing)]
    if loss is None:
        return _memory(job, rank, cause)
    summed = max(1.0, float(rank.kernels.ns.sum()))
    lines = [
        *loss.evidence,
        f"{duration(loss.involved_ns * 1e-9)} of {duration(summed * 1e-9)} kernel time is in "
        f"them; about {duration(loss.ns * 1e-9)} would come back",
    ]
    if cause == "compute.recompute" and (free := memory_free(job)) is not None:
        lines.append(f"{percent(free)} of the device's memory was free at the peak")
    return lines


def _comm(job: Job, rank: Rank, cause: str) -> list[str]:
    found, steps = rank.calls, max(1, len(rank.steps))
    exposed, inside = rank.time.exposed_comm_us * 1e-6, float((found.end - found.start).sum())
    lines = [
        f"{len(found.rows) / steps:,.0f} collectives per step; {duration(exposed)} of "
        f"{duration(inside * 1e-9)} in them is not hidden",
    ]
    known = [n for n in found.n_bytes if n is not None]
    if known:
        lines.append(f"{size(sum(known) / steps)} per step, {size(sum(known) / len(known))} a call")
    if job.straggling is not None:
        spread = job.straggling.spread_ns * 1e-9
        lines.append(f"ranks arrive {duration(spread)} apart on average")
        if cause.startswith("comm.straggler"):
            lines += job.straggling.evidence
    return lines


_RULES: Final[dict[str, Callable[[Job, Rank, str], list[str]]]] = {
    "input": _input,
    "host.launch": _launch,
    "host.sync": _sync,
    "host": _host,
    "transfer": _transfer,
    "memory": _memory,
    "compute": _compute,
    "comm": _comm,
}
