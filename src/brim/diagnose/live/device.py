"""A run with a device: the profiler window tells what the device did, the steps how often.

The window is short and slows the host.  What happens only now and then (an epoch's start, a
checkpoint, a collection) is not in it; what takes the host's time in every step without an event
of its own (garbage collection, a tracer, another thread) is in it under another name.  The steps
measured without the profiler put both right.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence

import msgspec

from brim.diagnose import remedies
from brim.diagnose.causes import COMPUTE, REPORTED_FROM, UNKNOWN, family
from brim.diagnose.gain import gain
from brim.diagnose.live import computes, devices, stacks
from brim.diagnose.live.account import Rank, metrics, notes, part_of, shared_findings
from brim.diagnose.live.clues import Clue, where
from brim.diagnose.trace.context import TraceContext
from brim.diagnose.trace.diagnosis import entries
from brim.record.findings import Diagnosis, Finding, Part, Where, Window, check
from brim.record.run import Run
from brim.record.steps import Step
from brim.units import duration, percent

_RARE = {
    "gc": "host.gc",
    "save": "host.periodic",
    "evaluation": "host.periodic",
    "compile": "host.recompile",
    "collect": "memory.cache-flush",
    "flush": "memory.cache-flush",
}
"""Exact seconds of a step → the cause that they are."""

_POOL = (UNKNOWN, "host.launch")
"""Idle time that a trace names so because it has no event for what the host did."""

_TRACED_BETTER = ("compute", "comm", "transfer", "device")
"""Families that only a trace can judge on a device."""

ROOM = 0.3
"""Share of the device's memory that was never used, from which on offloading is not needed."""

Shares = dict[tuple[Part, str], float]


def context(found: Sequence[Rank], *, peak_flops: float | None = None) -> TraceContext:
    """What the measured steps tell the judge of the trace."""
    walls = [s.wall for r in found for s in r.evidence.chosen.steps]
    steady = [c for r in found for c in r.clues if family(c.cause) == "input" and not c.once]
    footer = found[0].evidence.process.footer
    memory = footer.memory if footer else None
    free = 1 - memory["reserved_peak"] / memory["total"] if memory and "total" in memory else None
    return TraceContext(
        step_s=statistics.median(walls) if walls else None,
        memory_free=free,
        padding=computes.pad_share(found[0].evidence),
        peak_flops=peak_flops,
        input_cause=max(steady, key=lambda c: c.seconds).cause if steady else None,
        places=_places(found),
    )


def _places(found: Sequence[Rank]) -> dict[str, Where]:
    """Cause → line of the program."""
    places: dict[str, Where] = {}
    clues = sorted((c for r in found for c in r.clues), key=lambda c: c.seconds)
    for clue in clues:
        if clue.where is not None:
            places[clue.cause] = clue.where
    if (convolution := _convolves(found[0])) is not None:
        places["compute.slow-kernel"] = convolution
    reads = _reads(found[0].evidence.total)
    if reads:
        file, _, line = reads[0][0].rpartition(":")
        places["host.sync"] = Where(file=file, line=int(line))
    return places


def _convolves(rank: Rank) -> Where | None:
    """The line of the program in which convolutions were sampled most."""
    sites = [
        s
        for s in rank.evidence.of(stacks.COMPUTE)
        if s.stack.frames and "conv" in s.stack.frames[0].function.lower()
    ]
    most = max(sites, key=lambda s: s.wall, default=None)
    return where(stacks.site(most.stack)) if most is not None else None


def _reads(total: Step) -> list[tuple[str, int, float]]:
    """(file:line, times, seconds) of reads of device values, longest first."""
    rows = [
        (key.partition("|")[2], times, seconds)
        for key, (times, seconds) in total.reads.items()
        if key.startswith("read|")
    ]
    return sorted(rows, key=lambda row: -row[2])


def on_device(run: Run, found: Sequence[Rank], traced: Diagnosis) -> Diagnosis:
    """The trace's account, brought to the whole measured window."""
    clues = [c for r in found for c in r.clues] + devices.clues(run, found)
    shares = _base(traced)
    wall = sum(r.evidence.wall for r in found)
    clues += _offload(found, shares) + _blocking(found, shares)
    _move(shares, clues, wall)
    held = _of_device(clues, devices.metrics(run, found).get("gpu_util"), traced)
    for clue in held:
        _slow_down(shares, clue, wall)
    shares = _with_rare(shares, found)
    account = entries(shares)
    by_cause: dict[str, float] = defaultdict(float)
    for entry in account:
        by_cause[entry.cause] += entry.share
    silent = [c.evidence[0] for c in clues if family(c.cause) == "device" and c not in held]
    frameworks = remedies.frameworks(found[0].evidence.process.versions, run.info.command)
    first = found[0].evidence
    return check(
        msgspec.structs.replace(
            traced,
            verdict="",
            window=Window(
                steps=len(first.chosen.steps),
                wall_s=first.wall,
                ranks=len(found),
                chosen=f"{first.chosen.why}; the device was profiled for "
                f"{traced.window.steps} of its steps",
            ),
            account=account,
            findings=_findings(traced, by_cause, clues, found),
            frameworks=frameworks,
            metrics={**traced.metrics, **metrics(found), **devices.metrics(run, found)},
            notes=list(dict.fromkeys([*traced.notes, *notes(run, found), *silent])),
        )
    )


def _offload(found: Sequence[Rank], shares: Shares) -> list[Clue]:
    """The optimizer updates host memory though the device has room: its time and the copies that
    carry gradients and parameters to and fro are one cause."""
    first = found[0].evidence
    seconds, free = first.total.host_optimizer, context(found).memory_free
    if seconds < REPORTED_FROM * first.wall or free is None or free < ROOM:
        return []
    copies = 0.0
    for key in [k for k in shares if k[1] == "transfer.pageable"]:
        copies += shares[key]
        shares["idle", "host.offload"] += shares.pop(key)
    steps = max(1, len(first.chosen.steps))
    return [
        Clue(
            cause="host.offload",
            seconds=seconds + copies * first.wall,
            evidence=(
                f"the optimizer updates host memory: {duration(seconds / steps)} of each step of "
                f"{duration(first.step_s)}; copies to and from it take {percent(copies)} more",
                f"{percent(free)} of the device's memory was never used",
            ),
            after=0.0,
        )
    ]


def _blocking(found: Sequence[Rank], shares: Shares) -> list[Clue]:
    """With ``CUDA_LAUNCH_BLOCKING`` each launch waits for its kernel, so nothing is launched ahead:
    the gaps between kernels, which a trace calls launching, are its price."""
    header, wall = found[0].evidence.process.header, sum(r.evidence.wall for r in found)
    value = header.env.get("CUDA_LAUNCH_BLOCKING", "")
    share = shares.get(("idle", "host.launch"), 0.0)
    if value in ("", "0") or share <= 0:
        return []
    shares["idle", "host.debug-mode"] += shares.pop(("idle", "host.launch"))
    return [
        Clue(
            cause="host.debug-mode",
            seconds=share * wall,
            evidence=(
                f"CUDA_LAUNCH_BLOCKING={value}: each launch waits for its kernel; the device is "
                f"idle {percent(share)} of the time between kernels",
            ),
        )
    ]


def _base(traced: Diagnosis) -> Shares:
    shares: Shares = defaultdict(float)
    for entry in traced.account:
        shares[entry.part, entry.cause] += entry.share
    return shares


def _move(shares: Shares, clues: Sequence[Clue], wall: float) -> None:
    """Host time that the hooks name exactly is taken out of what the trace could not name."""
    for clue in sorted(clues, key=lambda c: -c.seconds):
        if family(clue.cause) in _TRACED_BETTER or clue.once or wall <= 0:
            continue
        have = sum(v for (_, cause), v in shares.items() if cause == clue.cause)
        missing = clue.seconds / wall - have
        for key in [k for k in shares if k[1] in _POOL and k[0] in ("idle", "unknown")]:
            part = min(shares[key], max(0.0, missing))
            if part > 0:
                shares[key] -= part
                shares[part_of(clue.cause), clue.cause] += part
                missing -= part


def _of_device(clues: Sequence[Clue], gpu_util: float | None, traced: Diagnosis) -> list[Clue]:
    """Clues that say how much the device itself lost.  Another process may hold memory and do
    nothing: it takes what the device was busy beyond the job's own kernels and copies."""
    others = (gpu_util or 0.0) - traced.metrics.get("busy", 1.0)
    return [
        c
        for c in clues
        if family(c.cause) == "device" and (c.cause != "device.shared" or others >= REPORTED_FROM)
    ]


def _slow_down(shares: Shares, clue: Clue, wall: float) -> None:
    """A device that is held down takes longer for the same useful work."""
    key: tuple[Part, str] = ("useful", COMPUTE)
    part = min(shares[key], clue.seconds / wall) if wall > 0 else 0.0
    shares[key] -= part
    shares["busy-lost", clue.cause] += part


def _with_rare(shares: Shares, found: Sequence[Rank]) -> Shares:
    """Add what made some steps longer than the median one."""
    rare: dict[str, float] = defaultdict(float)
    total = 0.0
    for rank in found:
        total += rank.evidence.wall
        for cause, seconds in _excess(rank).items():
            rare[cause] += seconds
    if total <= 0:
        return shares
    scale = 1.0 - sum(rare.values()) / total
    out: Shares = defaultdict(float, {key: value * scale for key, value in shares.items()})
    for cause, seconds in rare.items():
        out[part_of(cause), cause] += seconds / total
    return out


def _excess(rank: Rank) -> Mapping[str, float]:
    """Seconds by which steps exceed the median, as far as the hooks name them."""
    steps = rank.evidence.chosen.steps
    if not steps:
        return {}
    fields = {**_RARE, "input_wait": _input_cause(rank)}
    typical = statistics.median(s.wall for s in steps)
    usual = {name: statistics.median(getattr(s, name) for s in steps) for name in fields}
    found: dict[str, float] = defaultdict(float)
    for step in steps:
        over = {name: max(0.0, getattr(step, name) - usual[name]) for name in fields}
        named, extra = math.fsum(over.values()), step.wall - typical
        if named <= 0 or extra <= 0:
            continue
        for name, seconds in over.items():
            found[fields[name]] += seconds * min(1.0, extra / named)
    return found


def _input_cause(rank: Rank) -> str:
    steady = [c for c in rank.clues if family(c.cause) == "input" and not c.once]
    return max(steady, key=lambda c: c.seconds).cause if steady else "input.startup"


def _findings(
    traced: Diagnosis,
    shares: Mapping[str, float],
    clues: Sequence[Clue],
    found: Sequence[Rank],
) -> list[Finding]:
    """The trace's evidence and the hooks', for each cause that is reported."""
    from_trace = {f.cause: f for f in traced.findings}
    from_hooks = {f.cause: f for f in shared_findings(clues, shares)}
    made = []
    for cause, share in shares.items():
        both = [f for f in (from_trace.get(cause), from_hooks.get(cause)) if f is not None]
        if share < REPORTED_FROM or cause in (COMPUTE, UNKNOWN) or not both:
            continue
        evidence = [line for f in both for line in f.evidence]
        if cause == "host.sync":
            evidence += [_read_line(row, found) for row in _reads(found[0].evidence.total)[:2]]
        made.append(
            msgspec.structs.replace(
                both[0],
                share=share,
                gain=_gain(cause, share, from_trace.get(cause)),
                evidence=evidence,
                where=both[-1].where or both[0].where,
                remedies=(both[-1].remedies or remedies.for_cause(cause, {})),
                facts={name: fact for f in both for name, fact in f.facts.items()},
            )
        )
    return sorted(made, key=lambda f: -f.share)


def _gain(cause: str, share: float, traced: Finding | None) -> tuple[float, float]:
    """The replay's range where the trace has the cause at about this share, else the rule."""
    if traced is not None and abs(traced.share - share) < 0.02:
        return traced.gain
    return gain(cause, share)


def _read_line(row: tuple[str, int, float], found: Sequence[Rank]) -> str:
    place, times, _ = row
    steps = max(1, len(found[0].evidence.chosen.steps))
    return f"a device value is read {times / steps:.3g} times a step at {place}"
