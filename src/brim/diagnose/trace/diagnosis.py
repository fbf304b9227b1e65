"""The whole diagnosis of one job's traces."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence

from brim.diagnose.causes import COMPUTE, UNKNOWN
from brim.diagnose.trace.comm import Straggling, straggling
from brim.diagnose.trace.context import TraceContext
from brim.diagnose.trace.details import details
from brim.diagnose.trace.findings import Job, findings, memory_free, share_of
from brim.diagnose.trace.rank import Rank, Shares
from brim.diagnose.trace.useful import share_of_attainable, utilisation
from brim.diagnose.trace.whatif import gains
from brim.errors import InputError
from brim.record.findings import Diagnosis, Entry, Finding, Part, Window, check
from brim.record.kineto import Trace, check_one_job
from brim.units import duration, percent


def diagnose_traces(traces: Sequence[Trace], *, context: TraceContext | None = None) -> Diagnosis:
    """The account, the findings and the tables of one job, from one trace per rank.

    Shares are of the step window (of the kernel span where there are no ``ProfilerStep`` spans),
    the mean over the ranks.  Findings come without remedies.

    Raises :class:`InputError` for traces of several jobs and where no trace has a device event.
    """
    context = context or TraceContext()
    job = look(traces, context)
    shares = job_shares(job)
    account = entries(shares)
    found = findings(job, by_cause(shares), gains(job.worst))
    return check(
        Diagnosis(
            verdict=verdict(job, account, found),
            window=window(job),
            account=account,
            findings=found,
            device_time=[rank.exact for rank in job.ranks],
            device=device_name(job),
            metrics=metrics(job, shares),
            notes=list(notes(job)),
            details=details(job),
        )
    )


def look(traces: Sequence[Trace], context: TraceContext) -> Job:
    """The ranks with a device, analysed."""
    ordered = check_one_job(traces)
    ranks = [Rank(trace, context) for trace in ordered if len(trace.device)]
    if not ranks:
        raise InputError(
            f"{ordered[0].path}: no device event in the trace",
            hint="profile with ProfilerActivity.CUDA, on the machine with the device",
        )
    late: Straggling | None = None
    if len(ranks) > 1:
        late = straggling([rank.device for rank in ranks], [rank.calls for rank in ranks])
    return Job(ranks, context, late)


def job_shares(job: Job) -> Shares:
    """(part, cause) → mean share over the ranks, without what only the profiler cost."""
    total: Shares = defaultdict(float)
    for position, rank in enumerate(job.ranks):
        shares = _without_profiler(rank, job.context)
        for key, share in _with_stragglers(job, position, shares).items():
            total[key] += share / len(job.ranks)
    return _with_efficiency(total, model_flops_utilisation(job.context))


def model_flops_utilisation(context: TraceContext) -> float | None:
    """Useful FLOPs over what the device could do in an ordinary step, where both are known."""
    if context.step_s and context.model_flops_per_step is not None and context.peak_flops:
        return context.model_flops_per_step / context.step_s / context.peak_flops
    return None


def _with_efficiency(shares: Shares, mfu: float | None) -> Shares:
    """Where useful FLOPs are known, only they are useful: what kernels take beyond the peak is
    lost, with no cause of its own (``compute``: kernel efficiency)."""
    useful: tuple[Part, str] = ("useful", COMPUTE)
    if mfu is None or mfu >= shares.get(useful, 0.0):
        return shares
    out = dict(shares)
    out["busy-lost", COMPUTE] = out[useful] - mfu
    out[useful] = mfu
    return out


def _with_stragglers(job: Job, position: int, shares: Shares) -> Shares:
    """The part of exposed communication that is waiting for a late rank gets its own cause."""
    if job.straggling is None:
        return shares
    out = dict(shares)
    wait = job.straggling.wait_ns[position] / job.ranks[position].window_ns
    for cause in ("comm.exposed", "comm.too-many"):
        key: tuple[Part, str] = ("busy-not-computing", cause)
        part = min(wait, out.get(key, 0.0))
        if part > 0:
            out[key] -= part
            late: tuple[Part, str] = ("busy-not-computing", job.straggling.cause)
            out[late] = out.get(late, 0.0) + part
    return out


_PROFILED = ("host.launch", "compute.slow-kernel", "host.sync", UNKNOWN)


def _without_profiler(rank: Rank, context: TraceContext) -> Shares:
    """Shares of an ordinary step: a profiled step's host is slower, so the launches' idleness
    shrinks first by what an ordinary step takes less."""
    steps = len(rank.steps)
    if context.step_s is None or not steps:
        return rank.shares
    ordinary = steps * context.step_s * 1e9 / rank.window_ns
    excess = max(0.0, 1.0 - ordinary)
    out = dict(rank.shares)
    for cause in _PROFILED:
        for key in [key for key in out if key[1] == cause and key[0] in _NOT_BUSY]:
            cut = min(out[key], excess)
            out[key] -= cut
            excess -= cut
    whole = sum(out.values())
    return {key: share / whole for key, share in out.items()} if whole > 0 else rank.shares


_ORDER: dict[Part, int] = {
    "useful": 0, "busy-lost": 1, "busy-not-computing": 2, "idle": 3, "unknown": 4
}  # fmt: skip


def entries(shares: Shares) -> list[Entry]:
    """The account in the order of the parts, largest first in each; sums to 1 exactly."""
    rows = sorted(shares.items(), key=lambda item: (_ORDER[item[0][0]], -item[1]))
    rows = [(key, share) for key, share in rows if share > 0]
    if not rows:  # a window of no length
        return [Entry(part="unknown", cause=UNKNOWN, share=1.0)]
    largest = max(range(len(rows)), key=lambda at: rows[at][1])
    rest = 1.0 - math.fsum(share for at, (_, share) in enumerate(rows) if at != largest)
    return [
        Entry(part=part, cause=cause, share=rest if at == largest else share)
        for at, ((part, cause), share) in enumerate(rows)
    ]


def by_cause(shares: Shares) -> dict[str, float]:
    """Cause → share over all parts, without the healthy and the unknown."""
    out: dict[str, float] = defaultdict(float)
    for (_, cause), share in shares.items():
        if cause not in (COMPUTE, UNKNOWN):
            out[cause] += share
    return out


def window(job: Job) -> Window:
    first = job.ranks[0]
    stepped = first.device.step_span is not None
    steps = min(len(rank.steps) for rank in job.ranks)
    return Window(
        steps=steps,
        wall_s=statistics.fmean(rank.window_ns for rank in job.ranks) * 1e-9,
        ranks=len(job.ranks),
        chosen=(
            "from the start of the first profiled step to the last device event"
            if stepped
            else "from the first device event to the last (the trace marks no profiler steps)"
        ),
    )


def device_name(job: Job) -> str:
    for rank in job.ranks:
        info = rank.trace.devices.get(rank.device.main_device)
        if info is not None and info.name:
            return info.name
    return "unknown device"


def metrics(job: Job, shares: Shares) -> dict[str, float]:
    walls = [step.end - step.start for rank in job.ranks for step in rank.steps]
    out = {"busy": sum(share for (part, _), share in shares.items() if part not in _NOT_BUSY)}
    if walls:
        out["profiled_step_s"] = statistics.median(walls) * 1e-9
    if job.context.step_s is not None:
        out["step_s"] = job.context.step_s
    if (mfu := utilisation(job.ranks[0])) is not None:
        out["mfu"] = mfu
        if (reached := share_of_attainable(job.ranks[0])) is not None:
            out["mfu_of_attainable"] = reached
    return out


_NOT_BUSY = ("idle", "unknown")


def notes(job: Job) -> Iterator[str]:
    """Warnings, and what could not be told."""
    for rank in job.ranks:
        yield from rank.trace.warnings
    for rank in job.ranks:
        prefix = f"rank {rank.trace.rank}: " if len(job.ranks) > 1 else ""
        for line in _rank_notes(rank):
            yield prefix + line
    if job.context.model_flops_per_step is None and utilisation(job.ranks[0]) is not None:
        yield (
            "MFU counts matrix products, convolutions and SDPA by their recorded sizes, attention "
            "in full; work of other libraries' kernels is not in it"
        )
    if (reached := share_of_attainable(job.ranks[0])) is not None:
        flops = (job.context.attainable_flops or 0.0) * 1e-12
        yield (
            f"the best matrix product that was measured on this machine reached {flops:,.0f} "
            f"TFLOP/s; the model's FLOPs are {percent(reached)} of that"
        )
    lost = {loss.cause: loss for loss in job.ranks[0].losses}
    if "compute.recompute" in lost and memory_free(job) is None:
        yield (
            f"activations are recomputed ({percent(share_of(job.ranks[0], 'compute.recompute'))}); "
            "whether memory was free is not in the trace"
        )


def _rank_notes(rank: Rank) -> Iterator[str]:
    unlinked = int((rank.host.launch < 0).sum())
    if unlinked:
        yield f"{unlinked:,} device events were launched before the capture; they count"
    if rank.too_short:
        yield f"only {len(rank.trace.device)} device events: too few to name a cause"
    elif rank.is_start_up:
        share = rank.start_up_ns / rank.window_ns
        yield (
            f"a start-up capture, no steady state: {percent(share)} of the time is under first "
            "launches and first allocations; profile after a few warm-up steps"
        )
    elif rank.start_up_ns > 0.01 * rank.window_ns:
        share = rank.start_up_ns / rank.window_ns
        yield f"{percent(share)} of the time is under first launches or first allocations"
    if len({int(d) for d in rank.trace.device.device}) > 1:
        yield "several devices in one trace: busy means that any of them works"


def verdict(job: Job, account: Sequence[Entry], found: Sequence[Finding]) -> str:
    """One sentence."""
    idle = sum(e.share for e in account if e.part == "idle" or e.cause == UNKNOWN)
    wall = duration(job.ranks[0].window_ns * 1e-9)
    if all(rank.too_short for rank in job.ranks):
        return f"Too little to judge: {len(job.ranks[0].trace.device)} device events in {wall}."
    if all(rank.is_start_up for rank in job.ranks):
        return f"A start-up capture: the device is idle {percent(idle)} of {wall}, once."
    if not found:
        unknown = sum(e.share for e in account if e.cause == UNKNOWN)
        if unknown >= 0.05:
            return f"Not clear: {percent(unknown)} of {wall} could not be told apart."
        return f"Healthy: the device is idle {percent(idle)} of {wall}; no cause takes 5 %."
    first = f"{found[0].cause} takes {percent(found[0].share)}"
    return f"The device is idle {percent(idle)} of the time; {first}."
