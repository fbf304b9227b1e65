"""All ranks' windows as one diagnosis: the account sums to 1, each finding shows its evidence."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brim.diagnose import remedies
from brim.diagnose.causes import COMPUTE, REPORTED_FROM, UNKNOWN
from brim.diagnose.gain import gain
from brim.diagnose.live import computes, hosts, inputs, network, placing, ranks, stacks
from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import Evidence, gather
from brim.diagnose.live.inputs import Machine
from brim.diagnose.live.loaders import Workers, first_fetch
from brim.diagnose.live.loaders import gather as gather_workers
from brim.diagnose.live.rows import step_rows
from brim.diagnose.live.threads import gather as gather_threads
from brim.diagnose.live.window import choose, describe
from brim.record.devices import HostSample
from brim.record.findings import Confidence, Diagnosis, Entry, Finding, Part, Window, check
from brim.record.run import Run
from brim.units import percent

# Time that a kind holds is the clues' to explain; what they leave of it is unknown.
_DIRECT = {
    "input": ("input.",),
    stacks.PREPARE: ("input.main-process", "input.storage"),
    stacks.FETCH: ("input.storage", "input.main-process"),
    stacks.QUEUE: ("input.",),
    "gc": ("host.gc",),
    "collect": ("memory.cache-flush",),
    "flush": ("memory.cache-flush",),
    "compile": ("host.recompile",),
    stacks.COMPILE: ("host.recompile",),
    "save": ("host.periodic",),
    stacks.SAVE: ("host.periodic",),
    stacks.LOG: ("host.periodic",),
    stacks.EVALUATE: ("host.periodic",),
    stacks.METRIC: ("host.periodic",),
    stacks.COPY: ("host.periodic",),
    stacks.NOW_AND_THEN: ("host.periodic",),
    placing.BEFORE: ("input.main-process", "input.storage"),
    placing.AFTER: ("host.periodic",),
    stacks.TRACE: ("host.debug-mode",),
    stacks.RECOMPUTE: ("compute.recompute",),
    stacks.COMM: ("comm.",),
}
_BUSY = (stacks.COMPUTE,)
_PARTS: dict[str, Part] = {"compute": "busy-lost", "comm": "busy-not-computing"}

OVERSUBSCRIBED = "input.oversubscription"
CROWDED = 0.05
"""Waiting for a core, relative to computing, that any machine has."""

_RANKING: dict[Confidence, int] = {"low": 0, "medium": 1, "high": 2}


@dataclass(frozen=True, kw_only=True, slots=True)
class Rank:
    """One rank's evidence and what it points to."""

    evidence: Evidence
    workers: Workers | None
    clues: list[Clue]

    @property
    def wall(self) -> float:
        """The window, and a start-up that is part of what was seen."""
        once = sum(c.seconds for c in self.clues if c.once)
        return self.evidence.wall + once


def diagnose_run(run: Run, found: Sequence[Rank]) -> Diagnosis:
    """The account of a run without a device: the training thread plays the device.

    ``found``: what :func:`look` saw; a run in which no process trained gives an account that is
    ``unknown`` and says so.
    """
    if not found:
        return _nothing(run)
    seconds = _sum_up(found)
    total = sum(r.wall for r in found)
    account = _account(seconds, total)
    shares = {e.cause: e.share for e in account}
    frameworks = remedies.frameworks(found[0].evidence.process.versions, run.info.command)
    findings = shared_findings([c for r in found for c in r.clues], shares)
    first = found[0].evidence
    return check(
        Diagnosis(
            verdict="" if hosts.unpriced_modes(first) else sentence(findings, account),
            window=Window(
                steps=len(first.chosen.steps),
                wall_s=first.wall,
                ranks=len(found),
                chosen=f"{first.chosen.why}; {describe(first.chosen)}",
            ),
            account=account,
            findings=findings,
            device=_device(found),
            frameworks=frameworks,
            metrics=metrics(found),
            notes=notes(run, found),
            details={"steps": step_rows([(r.evidence, r.clues) for r in found])},
        )
    )


def _device(found: Sequence[Rank]) -> str:
    device = found[0].evidence.process.device
    name = f"{device['name']}, not profiled: " if device else ""
    return f"{name}the training thread" + ("" if device else " (no accelerator)")


def look(run: Run, *, warmup: int | None = None) -> list[Rank]:
    """Evidence and clues of each rank."""
    evidences = [gather(p, choose(p, warmup=warmup)) for p in run.processes]
    machine = _machine(run, evidences)
    stall = _memory_stall(run, evidences)
    net = network.job(run, evidences, _hosts(run, evidences))
    measured = [e for e in evidences if e.wall > 0]
    alone = [_of_one(run, e, machine, stall) for e in measured]
    across = ranks.clues(measured, [clues for _, clues in alone])
    found: list[Rank] = []
    for evidence, (workers, own), together in zip(measured, alone, across, strict=True):
        wired = network.clues(net) if net is not None and not found else []
        found.append(Rank(evidence=evidence, workers=workers, clues=[*own, *together, *wired]))
    return found


def _of_one(
    run: Run, evidence: Evidence, machine: Machine, stall: float | None
) -> tuple[Workers | None, list[Clue]]:
    """What one rank's own records tell."""
    lines = run.workers.get(evidence.rank, [])
    table = run.worker_stacks.get(evidence.rank, {})
    workers = gather_workers(lines, evidence.chosen, table)
    loading = inputs.clues(
        evidence,
        workers,
        machine,
        first_fetch=first_fetch(lines, evidence.chosen),
        own=gather_threads(run.loaders.get(evidence.rank), evidence.chosen),
    )
    others = hosts.clues(evidence, machine, memory_stall=stall)
    busy = computes.clues(evidence, memory_free=_memory_free(run, evidence))
    return workers, [*loading, *others, *busy]


def _hosts(run: Run, evidences: Sequence[Evidence]) -> list[HostSample]:
    """Host samples that lie in the window."""
    if run.recording is None or not evidences or not evidences[0].chosen.steps:
        return []
    begin, end = evidences[0].chosen.steps[0].t, evidences[0].chosen.steps[-1].t
    return [s for s in run.recording.host if begin <= s.mono <= end]


def _machine(run: Run, evidences: Sequence[Evidence]) -> Machine:
    samples = _hosts(run, evidences)
    header = evidences[0].process.header if evidences else None
    machine = int(run.info.host.get("cores", 0)) or (header.machine_cores if header else 0) or 1
    usable = (header.cores if header else None) or machine
    quota = run.info.host.get("quota")
    throttled = [s.throttled for s in samples if s.throttled is not None]
    job = [s.job_cpu for s in samples if s.job_cpu is not None]
    return Machine(
        machine=machine,
        usable=min(float(usable), float(quota)) if quota else float(usable),
        job=statistics.fmean(job) if job else None,
        throttled=statistics.fmean(throttled) if throttled else 0.0,
        ranks=max(1, len(evidences)),
    )


LITTLE_MEMORY = 0.1
"""Free share of the host's memory under which it is called short."""
SWAPPING = 1e6
"""Bytes a second that come back from swap, from which on it is called short too."""


def _memory_stall(run: Run, evidences: Sequence[Evidence]) -> float | None:
    """Share of the window in which some task waited for memory; None where the host has plenty of
    it and swaps nothing in: the kernel's figure is about everything that runs on the machine."""
    rows = [s for s in _hosts(run, evidences) if s.psi and "memory.some" in s.psi]
    if not rows:
        return None
    whole = run.info.host.get("memory")
    swapped = statistics.fmean(s.swap_in_bytes_s or 0.0 for s in rows)
    least = min(s.memory_available_bytes or whole or 0 for s in rows)
    short = swapped > SWAPPING or bool(whole and least < LITTLE_MEMORY * whole)
    return statistics.fmean(s.psi["memory.some"] for s in rows if s.psi) if short else None


def _memory_free(run: Run, evidence: Evidence) -> float | None:
    """Share of the memory that activations could have used: the device's, else the host's."""
    footer = evidence.process.footer
    if footer is not None and footer.memory and footer.memory.get("total"):
        return 1 - footer.memory.get("reserved_peak", 0) / footer.memory["total"]
    available = [
        s.memory_available_bytes for s in _hosts(run, [evidence]) if s.memory_available_bytes
    ]
    whole = run.info.host.get("memory")
    return min(available) / float(whole) if available and whole else None


def _sum_up(found: Sequence[Rank]) -> dict[str, float]:
    """Cause → seconds over all ranks; with ``compute`` and ``unknown`` they fill the walls."""
    total: dict[str, float] = defaultdict(float)
    for rank in found:
        for cause, value in _of_rank(rank).items():
            total[cause] += value
    return total


def _of_rank(rank: Rank) -> dict[str, float]:
    """The clues' seconds, each limited to the time that it can be about."""
    left = dict(rank.evidence.seconds)
    named: dict[str, float] = defaultdict(float)
    for clue in sorted(rank.clues, key=lambda c: -c.seconds):
        if clue.once:
            named[clue.cause] += clue.seconds
        else:
            named[clue.cause] += _take(left, clue)
    busy = sum(left.pop(kind, 0.0) for kind in _BUSY)
    starved = min(busy, _starved(rank, named))
    named[COMPUTE] = busy - starved
    named[UNKNOWN] = sum(left.values()) + starved
    return named


def _starved(rank: Rank, named: Mapping[str, float]) -> float:
    """Seconds in which the training thread was runnable outside the loader, but other programs
    had the cores: it did not compute, and nothing in the job is the cause."""
    total = rank.evidence.total
    if total.run_delay is None or named.get("input.cpu-limit") or named.get(OVERSUBSCRIBED):
        return 0.0
    computing = total.cpu - total.input_cpu
    return total.run_delay if total.run_delay > CROWDED * max(computing, 1e-9) else 0.0


def _take(left: dict[str, float], clue: Clue) -> float:
    """Seconds for a clue: from the kinds that are its own, then from computing, then the rest."""
    own = [k for k, causes in _DIRECT.items() if clue.cause.startswith(causes)]
    own = [stacks.COMM, stacks.COMPUTE, *own] if clue.for_other else own
    taken = 0.0
    for kind in [*own, stacks.COMPUTE, stacks.PYTHON]:
        part = min(left.get(kind, 0.0), max(0.0, clue.seconds - taken))
        if part > 0:
            left[kind] -= part
            taken += part
    return taken


def _account(seconds: Mapping[str, float], total: float) -> list[Entry]:
    """Largest first within useful, lost, idle, unknown; rounding goes to the largest entry."""
    entries = [
        Entry(part=part_of(cause), cause=cause, share=value / total)
        for cause, value in seconds.items()
        if value > 0
    ]
    return close(sorted(entries, key=lambda e: -e.share))


def close(entries: list[Entry]) -> list[Entry]:
    """Make the shares sum to exactly 1 by correcting the largest by the rounding error."""
    if not entries:
        return [Entry(part="unknown", cause=UNKNOWN, share=1.0)]
    rest = 1.0 - sum(e.share for e in entries[1:])
    return [Entry(part=entries[0].part, cause=entries[0].cause, share=rest), *entries[1:]]


def part_of(cause: str) -> Part:
    if cause == COMPUTE:
        return "useful"
    if cause == UNKNOWN:
        return "unknown"
    return _PARTS.get(cause.partition(".")[0], "idle")


def shared_findings(clues: Sequence[Clue], shares: Mapping[str, float]) -> list[Finding]:
    """One finding for each cause whose share of the account is to be reported, largest first."""
    by_cause: dict[str, list[Clue]] = defaultdict(list)
    for clue in clues:
        by_cause[clue.cause].append(clue)
    wanted = [c for c, of in by_cause.items() if shares.get(c, 0.0) >= _report_from(of)]
    made = [_finding(cause, shares[cause], by_cause[cause]) for cause in wanted]
    return sorted(made, key=lambda f: -f.share)


def _report_from(clues: Sequence[Clue]) -> float:
    return min((c.report_from for c in clues), default=REPORTED_FROM)


def _finding(cause: str, share: float, clues: list[Clue]) -> Finding:
    clues = sorted(clues, key=lambda c: -c.seconds)
    first = clues[0]
    evidence = list(dict.fromkeys(line for c in clues[:3] for line in c.evidence))
    afters = [c.after for c in clues if c.after is not None]
    facts = {name: value for c in reversed(clues) for name, value in c.facts.items()}
    stays = sum(afters) / sum(c.seconds for c in clues) if len(afters) == len(clues) else None
    return Finding(
        cause=cause,
        share=share,
        gain=gain(cause, share, stays),
        confidence=min((c.confidence for c in clues), key=_RANKING.__getitem__),
        evidence=evidence[:6],
        where=first.where,
        remedies=remedies.for_cause(cause, facts),
        facts=facts,
    )


def sentence(findings: Sequence[Finding], account: Sequence[Entry]) -> str:
    """The verdict in one sentence; empty where the findings, or what is unknown, must speak."""
    busy = sum(e.share for e in account if e.part == "useful")
    unknown = sum(e.share for e in account if e.part == "unknown")
    if not findings and unknown < REPORTED_FROM:
        return f"Healthy: the training thread computes {busy:.0%} of the time; no cause takes 5 %."
    return ""


def metrics(found: Sequence[Rank]) -> dict[str, float]:
    """Figures over the window; absent where nothing was seen."""
    first = found[0].evidence
    walls = [s.wall for s in first.chosen.steps]
    wall = first.wall
    stepped = bool(walls) and first.chosen.clock != "exit"
    named = {"step_s": statistics.median(walls)} if stepped else {}
    tokens = sum(r.evidence.total.tokens - r.evidence.total.pad_tokens for r in found)
    counted = sum(r.evidence.total.counted_batches for r in found)
    batches = sum(r.evidence.total.batches for r in found)
    if tokens and counted and batches:
        named["tokens_per_s"] = tokens / counted * batches / wall
    samples = sum(r.evidence.total.documents for r in found)
    if samples:
        named["samples_per_s"] = samples / wall
    named["input_wait"] = first.share("input")
    share = computes.pad_share(first)
    if share is not None:
        named["pad_share"] = share
    named["overhead"] = first.total.own / wall if wall else 0.0
    return named


def notes(run: Run, found: Sequence[Rank]) -> list[str]:
    said = list(run.notes)
    code = run.info.exit_code
    if code:
        said.append(f"the job ended with exit code {code}")
    for rank in found:
        footer = rank.evidence.process.footer
        if footer is None:
            said.append(
                f"rank {rank.evidence.rank}: the recording was cut off; all whole lines count"
            )
        elif footer.failures:
            names = ", ".join(sorted(footer.failures))
            said.append(f"rank {rank.evidence.rank}: hooks that failed and were left out: {names}")
    first = found[0].evidence
    if first.total.run_delay and first.total.run_delay > 0.1 * first.wall:
        share = percent(first.total.run_delay / first.wall)
        said.append(f"the training thread was runnable without a core {share} of the time")
    said += [
        f"{mode} is on in all steps and stays on, so what it costs is not known: compare with a "
        "run without it"
        for mode in hosts.unpriced_modes(first)
    ]
    said += _unexplained(first)
    evidences = [r.evidence for r in found]
    if (net := network.job(run, evidences, _hosts(run, evidences))) is not None:
        said += network.notes(net)
    steps = len(found[0].evidence.chosen.steps)
    if steps < 10 and found[0].evidence.chosen.clock != "exit":
        said.append(f"{steps} step{'s' * (steps != 1)} measured: the shares are rough")
    return said


def _unexplained(evidence: Evidence) -> list[str]:
    """Where the time went that no rule knows: the user may."""
    sites = evidence.of(stacks.PYTHON, stacks.SLEEP)
    share = evidence.share(stacks.PYTHON) + evidence.share(stacks.SLEEP)
    if not sites or share < REPORTED_FROM:
        return []
    return [
        f"{percent(share)} of the time the training thread is in Python that no rule knows, most "
        f"of it in {hosts.describe(sites[0])}"
    ]


def _nothing(run: Run) -> Diagnosis:
    """No process trained, or none lived long enough."""
    said = [*run.notes, "no training step was seen"]
    if run.info.exit_code:
        said.append(f"the job ended with exit code {run.info.exit_code}")
    return Diagnosis(
        verdict="Nothing was measured: no process of the command trained with torch.",
        window=Window(steps=0, wall_s=run.info.wall_s or 0.0, ranks=0),
        account=[Entry(part="unknown", cause=UNKNOWN, share=1.0)],
        findings=[],
        notes=said,
    )
