"""Which ``input.*`` a wait for the loader is.

The questions are asked in the order in which one answer excludes the next: is it an epoch's start,
is it the training process itself, is it the hand-over, do the workers wait for storage, do they
wait for a core, and only then: are they too few, or is the work too dear for the cores.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace

from brim.diagnose.causes import REPORTED_FROM
from brim.diagnose.live import loaderless, threads
from brim.diagnose.live.clues import Clue, where
from brim.diagnose.live.evidence import Evidence
from brim.diagnose.live.loaders import Workers
from brim.diagnose.live.stacks import QUEUE, function_of, site
from brim.diagnose.live.threads import Threads
from brim.units import duration, percent, size

MAIN_SHARE = 0.5
"""More of the wait than this in one place names it."""
SATURATED = 0.9
"""Workers that make batches for more than this share of the time are what a loop waits for."""
BLOCKED = 0.5
"""A worker that is off its core, and not for want of one, for more than this share of the time in
which it makes batches, waits for something: storage."""
SEVERAL = 1.4
"""Threads of one worker that want a core at once, from which on they are more than one."""
MOST_WORKERS = 256
LOCKED = 0.3
"""Share of the workers' time in a lock, from which on it is the lock that they wait for."""
STARTUP_S = 3.0
"""A start that the training process itself works on is looked at from here,"""
LONG_START_S = 15.0
"""and one that it only waits for from here."""
PRICE = 0.1
"""Shares below this are what any worker process costs: a few milliseconds to pass a batch on, a
batch's latency at an epoch's start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Cores, as far as the records tell."""

    machine: int
    """Online cores."""
    usable: float
    """Affinity ∩ quota of the training process."""
    job: float | None = None
    """Cores that the job used in the window."""
    throttled: float = 0.0
    """Share of the quota's periods in which it ran out."""
    ranks: int = 1
    """Training processes that share the cores of the host."""


def clues(
    evidence: Evidence,
    workers: Workers | None,
    machine: Machine,
    *,
    first_fetch: float = 0.0,
    own: Threads | None = None,
) -> list[Clue]:
    """What the training thread's input time is due to; at most one clue for the steady wait.

    ``first_fetch``: seconds that a worker spent making batches before the window began.
    """
    found = [_startup(evidence, first_fetch), *loaderless.clues(evidence)]
    waited, queued = evidence.seconds.get("input", 0.0), evidence.seconds.get(QUEUE, 0.0)
    if waited > 0:
        found.append(_priced(evidence, workers, _steady(evidence, workers, machine, waited, own)))
    if queued > 0 and workers is not None:  # another thread of the program asks the loader
        found.append(_workers(evidence, workers, machine, queued))
    elif queued > 0:
        found.append(loaderless.queue(evidence, cores=machine.usable, used=machine.job))
    return [clue for clue in found if clue is not None]


def _priced(evidence: Evidence, workers: Workers | None, clue: Clue | None) -> Clue | None:
    """Where batches lie ready when the loop asks, the wait is not for their making; unless the
    workers never rest: then it is the next batch that is late, and others lie ready behind it."""
    total = evidence.total
    lay_ready = total.batches > 0 and total.ready >= total.batches
    if workers is not None and workers.busy >= SATURATED:
        return clue
    if clue is None or not lay_ready or clue.cause == "input.worker-restart":
        return clue
    return replace(clue, report_from=max(clue.report_from, PRICE))


def _steady(
    evidence: Evidence,
    workers: Workers | None,
    machine: Machine,
    waited: float,
    own: Threads | None,
) -> Clue | None:
    total = evidence.total
    if own is not None and workers is None:
        return threads.clue(
            own, waited, usable=machine.usable, machine=machine.machine, ranks=machine.ranks
        )
    epoch = total.input_iter + total.input_first + total.input_shutdown
    if total.worker_starts and total.epochs >= 2 and epoch > MAIN_SHARE * waited:
        return _restart(evidence, waited, epoch)
    if total.input_main > MAIN_SHARE * waited:
        return _main_process(evidence, waited)
    if epoch > MAIN_SHARE * waited:
        return _refill(evidence, waited, epoch)
    if (sampler := _sampler(evidence, waited)) is not None:
        return sampler
    if total.rebuild > MAIN_SHARE * waited:
        handoff = _handoff(evidence, workers, waited)
        cheap = waited < handoff.report_from * evidence.wall
        # rebuilding takes long, too, where the thread gets no core: it must not hide slow workers
        if workers is None or workers.busy < SATURATED or not cheap:
            return handoff
    if workers is None:
        return _bare_wait(evidence, waited)
    return _workers(evidence, workers, machine, waited)


def _waited(evidence: Evidence, seconds: float) -> str:
    total = evidence.total
    ready = f", {total.ready / total.batches:.1f} batches lay ready" if total.batches else ""
    return (
        f"the loop waited {duration(seconds)} of {duration(evidence.wall)} for the loader "
        f"in {len(evidence.chosen.steps)} steps{ready}"
    )


def _restart(evidence: Evidence, waited: float, epoch: float) -> Clue:
    total = evidence.total
    return Clue(
        cause="input.worker-restart",
        seconds=waited,
        evidence=(
            _waited(evidence, waited),
            f"{total.worker_starts} worker processes were started in {total.epochs} epochs; "
            f"starting them and waiting for their first batch took {duration(epoch)}",
        ),
        after=max(0.0, waited - epoch),
        facts={"epochs": total.epochs},
    )


def _refill(evidence: Evidence, waited: float, epoch: float) -> Clue:
    """Workers stay, but nothing is prefetched over an epoch's end: the first batch is late."""
    return Clue(
        cause="input.startup",
        seconds=waited,
        confidence="medium",
        evidence=(
            _waited(evidence, waited),
            f"{duration(epoch)} of it at the starts of {evidence.total.epochs} epochs: nothing is "
            "prefetched over an epoch's end",
        ),
        report_from=PRICE,
    )


def _main_process(evidence: Evidence, waited: float) -> Clue:
    """No workers: the training process loads.  Blocked in reads, it is the storage that it
    waits for; more workers are the cure either way."""
    total = evidence.total
    on_core = total.input_cpu / waited if waited else 1.0
    # What the thread waited for a core is not known by phase: its share of the time is taken.
    runnable = on_core + (total.run_delay or 0.0) / evidence.wall
    places = [s for s in evidence.sites if s.stack.phase == "input"]
    top = places[0] if places else None
    doing = f", most of it in {function_of(top.stack)}" if top else ""
    blocked = runnable < loaderless.ON_CORE
    cause = "input.storage" if blocked else "input.main-process"
    stage = f"per step: getitem {duration(total.getitem / len(evidence.chosen.steps))}"
    return Clue(
        cause=cause,
        seconds=waited,
        evidence=(
            f"the training process itself loads (no workers): {duration(waited)} of "
            f"{duration(evidence.wall)}{doing}",
            f"{stage}, collate {duration(total.collate / len(evidence.chosen.steps))}; "
            f"the thread computed {percent(min(1.0, on_core))} of that time",
        ),
        where=where(site(top.stack)) if top else None,
        facts={"batch_s": waited / max(1, total.batches), "blocked": int(blocked)},
    )


def _sampler(evidence: Evidence, waited: float) -> Clue | None:
    """Workers wait for their indices: the sampler runs in the training thread, in ``next()``."""
    sites = [s for s in evidence.sites if s.stack.phase == "input"]
    choosing = [s for s in sites if any(f.function.endswith("_next_index") for f in s.stack.frames)]
    part = sum(s.wall for s in choosing) / max(1e-9, sum(s.wall for s in sites))
    if not choosing or part < MAIN_SHARE:
        return None
    top = choosing[0]
    return Clue(
        cause="input.main-process",
        seconds=waited,
        evidence=(
            f"the sampler chooses indices in the training thread: {percent(part)} of the "
            f"{duration(waited)} of {duration(evidence.wall)} that the loop spent in the loader, "
            f"most of it in {function_of(top.stack)}",
            f"{evidence.total.ready / max(1, evidence.total.batches):.1f} batches lay ready: the "
            "workers are not what it waits for",
        ),
        where=where(site(top.stack)),
        facts={"sampler": 1},
    )


def _handoff(evidence: Evidence, workers: Workers | None, waited: float) -> Clue:
    total = evidence.total
    batches = max(1, total.batches)
    lines = [
        _waited(evidence, waited),
        f"rebuilding batches in the training process took {duration(total.rebuild)}; "
        f"{size(total.rebuild_bytes / batches)} came through the queue per batch",
    ]
    if workers is not None:
        lines.append(_weight(workers))
    dear = workers is None or _is_dear(workers)
    return Clue(
        cause="input.handoff",
        seconds=waited,
        evidence=tuple(lines),
        report_from=REPORTED_FROM if dear else 2 * PRICE,
    )


def _is_dear(workers: Workers) -> bool:
    """Many tensors, views of bigger ones, or many bytes: what a few dense tensors would save."""
    views = workers.storage_bytes > 1.5 * workers.tensor_bytes
    return workers.tensors > 32 or views or workers.tensor_bytes > 32 << 20


def _weight(workers: Workers) -> str:
    text = (
        f"a batch is {workers.tensors:.0f} tensors of {size(workers.tensor_bytes)}; pickling took "
        f"{duration(workers.pickle / max(1, workers.fetches))} a batch in the worker"
    )
    if workers.storage_bytes > 1.5 * workers.tensor_bytes > 0:
        text += f"; their storages are {size(workers.storage_bytes)} (views of bigger tensors)"
    return text


def _bare_wait(evidence: Evidence, waited: float) -> Clue:
    return Clue(
        cause="input.workers",
        seconds=waited,
        confidence="low",
        evidence=(_waited(evidence, waited), "the loader's workers left no records"),
    )


def _workers(evidence: Evidence, workers: Workers, machine: Machine, waited: float) -> Clue:
    handing = workers.pickle / max(1, workers.count) + evidence.total.rebuild
    if workers.pickle > workers.fetch and handing > MAIN_SHARE * waited:
        return _handoff(evidence, workers, waited)
    if workers.blocked > BLOCKED:
        return _storage(evidence, workers, waited)
    return _cpu(evidence, workers, machine, waited)


_LOCKS = re.compile(r"SemLock|Lock\.|\block(f|ed)?\b|acquire|flock|filelock|fasteners|portalocker")


def _storage(evidence: Evidence, workers: Workers, waited: float) -> Clue:
    """Bandwidth when bytes flow while the workers wait, else latency."""
    read = workers.read_calls_bytes
    seconds = max(evidence.wall, 1e-9)
    per_sample = read / max(1, workers.samples)
    kind = "bandwidth" if per_sample > 1 << 20 else "latency"
    locked = sum(share for name, share in workers.top if _LOCKS.search(name))
    healed = ", which more workers hide" if kind == "latency" else ""
    if locked > LOCKED:
        healed = f"; {percent(locked)} of the time they wait for a lock: one reads at a time"
    top = ", ".join(f"{name} {percent(share)}" for name, share in workers.top[:2])
    return Clue(
        cause="input.storage",
        seconds=waited,
        evidence=(
            _waited(evidence, waited),
            f"while making a batch the workers computed {percent(workers.on_core)} of the time and "
            f"were blocked {percent(workers.blocked)}: {top or 'in system calls'}",
            f"they read {size(read / seconds)}/s, {size(per_sample)} a sample: {kind}{healed}",
        ),
        where=where(workers.place),
        facts={"kind": kind, "workers": workers.count, **({"lock": 1} if locked > LOCKED else {})},
    )


def _cpu(evidence: Evidence, workers: Workers, machine: Machine, waited: float) -> Clue:
    """The workers compute, or want to."""
    allowed = min(machine.usable, workers.cores or machine.usable)
    used = max(_used(evidence, workers), machine.job or 0.0)  # other ranks use the same cores
    # a worker that is runnable without a core proves that none is left, whoever has it
    left = allowed - used - workers.starved * workers.busy * workers.active * machine.ranks
    lines = [
        _waited(evidence, waited),
        f"{_number(workers)}: making batches "
        f"{percent(workers.busy)} of the time, computing {percent(workers.on_core)} of that, "
        f"without a core {percent(workers.starved)}",
        f"the job used {used:.1f} of {allowed:g} usable cores",
    ]
    several = workers.running >= SEVERAL and workers.threads > 2
    wanted = workers.running * workers.count
    if several and wanted > 1.25 * allowed:
        lines.append(
            f"each worker runs {workers.threads} threads and {workers.running:.1f} of them want a "
            f"core at once: {wanted:.0f} for {allowed:g} cores, {workers.preempted} preemptions"
        )
        return _clue("input.oversubscription", waited, lines, workers)
    if _limited(allowed, machine) and (left < 0.5 or machine.throttled > 0.05):
        lines.append(_limit(allowed, machine))
        return _clue("input.cpu-limit", waited, lines, workers)
    lines.extend(_dear(workers))
    if left >= 0.5 and workers.busy > 0.5:
        return _too_few(evidence, workers, waited, lines, allowed)
    return _clue("input.decode", waited, lines, workers)


def _number(workers: Workers) -> str:
    if workers.active < workers.count:
        return f"{workers.active} of {workers.count} workers load, the others have no data left"
    return f"{workers.count} worker{'s' * (workers.count != 1)}"


def _used(evidence: Evidence, workers: Workers) -> float:
    """Cores that the training thread and its workers used."""
    return workers.cpu / max(workers.span, 1e-9) + evidence.total.cpu / max(evidence.wall, 1e-9)


def _limited(allowed: float, machine: Machine) -> bool:
    return allowed < machine.machine or machine.throttled > 0.05


def _limit(allowed: float, machine: Machine) -> str:
    text = f"the job may use {allowed:g} of the machine's {machine.machine} cores"
    if machine.throttled > 0.05:
        text += f"; its quota ran out in {percent(machine.throttled)} of the periods"
    return text


def _dear(workers: Workers) -> list[str]:
    tops = ", ".join(f"{name} {percent(share)}" for name, share in workers.top[:2])
    return [f"a sample takes {duration(workers.sample_cpu)} of CPU: {tops}"] if tops else []


def _too_few(
    evidence: Evidence,
    workers: Workers,
    waited: float,
    lines: list[str],
    allowed: float,
) -> Clue:
    """How many workers the loop's rate needs, and what the cores let through."""
    batch_s = workers.fetch / max(1, workers.fetches)
    # A loop that does nothing but wait needs no number of workers that anybody has.
    compute_s = (evidence.wall - waited) / max(1, evidence.total.batches)
    compute_s = max(compute_s, batch_s / MOST_WORKERS, 1e-9)
    needed = math.ceil(1.15 * batch_s / compute_s)
    fit = max(workers.active + 1, math.floor(allowed))
    number = max(workers.active + 1, min(needed, fit))
    reached = min(1.0, number * compute_s / batch_s)
    lines.append(
        f"a batch takes a worker {duration(batch_s)}, the loop {duration(compute_s)}: {needed} "
        f"workers would keep up, {number} fit the cores"
    )
    after = 0.0 if reached >= 1.0 else waited * (1 - reached)
    return Clue(
        cause="input.workers",
        seconds=waited,
        evidence=tuple(lines),
        where=where(workers.place),
        after=after,
        facts={"workers": number, "needed": needed, "now": workers.active},
    )


def _clue(cause: str, waited: float, lines: list[str], workers: Workers) -> Clue:
    return Clue(
        cause=cause,
        seconds=waited,
        evidence=tuple(lines),
        where=where(workers.place),
        facts={"workers": workers.count, "threads": workers.threads, "cores": workers.cores},
    )


def _startup(evidence: Evidence, first_fetch: float) -> Clue | None:
    """The first batch took long, once: worth a word when it is a good part of what was seen."""
    before = evidence.chosen.before
    once = sum(s.input_iter + s.input_first for s in before)
    working = first_fetch + sum(s.input_cpu + s.input_iter for s in before)
    # Workers that import their modules take some seconds, and that is no fault of the program.
    if once < (STARTUP_S if working > MAIN_SHARE * once else LONG_START_S):
        return None
    seen = once + evidence.wall
    steady = evidence.seconds.get("input", 0.0) / max(evidence.wall, 1e-9)
    if steady >= 0.05 or once / seen < 0.1:
        return None
    sites = sorted(
        ((w, key) for s in before for key, (_, w, _, _) in s.samples.items()), reverse=True
    )
    stack = next(
        (evidence.process.stacks[k] for _, k in sites if k in evidence.process.stacks), None
    )
    doing = f", most of it in {function_of(stack)}" if stack else ""
    return Clue(
        cause="input.startup",
        seconds=once,
        confidence="medium",
        evidence=(
            f"the first batch took {duration(once)}, once{doing}; after that the loop waits "
            f"{percent(steady)} of the time",
        ),
        where=where(site(stack)) if stack else None,
        once=True,
    )
