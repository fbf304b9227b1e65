"""Who waits for whom: several ranks of one job, from their step records.

Inside a step each rank works and then waits in collectives until the last one arrives.  On a CPU
the wait is what the training thread spends off its core in backward and in collectives; a rank
that waits little is the one that the others wait for.
"""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from brim.diagnose.live.chores import DOING, sampled, timed
from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import Evidence
from brim.record.steps import Step
from brim.units import duration, percent, size

SMALL_BUCKET = 1 << 20
"""Bytes per collective below which latency, not bandwidth, is paid."""
FEW_BUCKETS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Behind:
    """In one step a rank waits for the last one."""

    step: int
    late: int
    waited: float
    later: float
    """Seconds by which the late rank worked longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waits:
    """Per rank and step: seconds of work, seconds of waiting for others."""

    work: list[list[float]]
    wait: list[list[float]]
    steps: list[list[Step]]
    delay: list[list[float]]
    """Of the work: runnable, without a core.  Ranks of one host take the cores from each other,
    and that a rank was not let run says nothing about its data or its device."""

    def behind(self, rank: int) -> Iterator[Behind]:
        """Step by step, what a rank waited for a later one, beyond what the last one waited too,
        and not because the later one had no core."""
        for step in range(len(self.wait[rank])):
            late = max(range(len(self.work)), key=lambda r: self.work[r][step])
            beyond = self.wait[rank][step] - min(row[step] for row in self.wait)
            later = self.work[late][step] - self.work[rank][step]
            starved = self.delay[late][step] - self.delay[rank][step]
            if later > 0:
                waited = beyond * (1.0 - min(1.0, max(0.0, starved / later)))
                yield Behind(step=step, late=late, waited=waited, later=later)

    def alone(self, rank: int) -> float:
        """Seconds that a rank waited for a later one."""
        return sum(b.waited for b in self.behind(rank))

    def share(self, rank: int) -> float:
        total = sum(self.work[rank]) + sum(self.wait[rank])
        return sum(self.wait[rank]) / total if total else 0.0


def waits(evidences: Sequence[Evidence]) -> Waits:
    """Steps are matched from the end: ranks of one job take the same number."""
    steps = min(len(e.chosen.steps) for e in evidences)
    rows = [e.chosen.steps[-steps:] for e in evidences] if steps else [[] for _ in evidences]
    wait = [[waiting(s) for s in row] for row in rows]
    work = [
        [max(0.0, s.wall - w) for s, w in zip(row, ws, strict=True)]
        for row, ws in zip(rows, wait, strict=True)
    ]
    delay = [[s.run_delay or 0.0 for s in row] for row in rows]
    return Waits(work=work, wait=wait, steps=rows, delay=delay)


def waiting(step: Step) -> float:
    """Off the core and not for want of one, outside the loader and outside sleeps: collectives."""
    delay = step.run_delay or 0.0
    blocked = step.wall - step.cpu - delay - max(0.0, step.input_wait - step.input_cpu)
    inside = step.backward + step.comm + step.optimizer
    if step.backward_cpu:  # known where it waits: what sleeps elsewhere does not wait for others
        inside = max(0.0, step.backward - step.backward_cpu) + step.comm
    return min(max(0.0, blocked), inside)


def clues(
    evidences: Sequence[Evidence], own: Sequence[Sequence[Clue]] | None = None
) -> list[list[Clue]]:
    """For each rank the clues about its waiting.

    What the last rank waits too, everybody pays for the transfer.  What the others wait beyond
    that, they wait for the last rank: for what it does besides training, if it does more of that
    than they do, else for its training.  ``own``: what each rank's own records tell.
    """
    if len(evidences) < 2:
        return [[] for _ in evidences]
    seen = waits(evidences)
    common = [min(row) for row in zip(*seen.wait, strict=True)]
    transport, straggling = _transport(evidences), _straggling(evidences, seen)
    found: list[list[Clue]] = []
    together = sum(common)
    for position, evidence in enumerate(evidences):
        rank = f"rank {evidence.rank} waited"
        others = _for_chores(evidences, own, seen, position) if own is not None else []
        alone = seen.alone(position) - sum(c.seconds for c in others)
        made = [
            _clue(transport, together, f"{rank} {duration(together)} for transfers"),
            _clue(straggling, alone, f"{rank} {duration(alone)} for a rank that arrived later"),
            *others,
        ]
        found.append([clue for clue in made if clue.seconds > 0])
    return found


def _for_chores(
    evidences: Sequence[Evidence], own: Sequence[Sequence[Clue]], seen: Waits, rank: int
) -> list[Clue]:
    """Waiting for ranks that do something else than training, as the clue which that rank has."""
    found = []
    for (late, cause), seconds in _waited_for(evidences, seen, rank).items():
        same = [c for c in own[late] if not c.once and c.cause.startswith(cause)]
        if not same or seconds <= 0:
            continue
        its = max(same, key=lambda c: c.seconds)
        text = (
            f"rank {evidences[rank].rank} waited {duration(seconds)} for rank "
            f"{evidences[late].rank}, which {DOING[cause]} meanwhile"
        )
        scaled = None if its.after is None else its.after * seconds / max(its.seconds, 1e-9)
        found.append(replace(its, seconds=seconds, evidence=(text,), after=scaled, for_other=True))
    return found


def _waited_for(
    evidences: Sequence[Evidence], seen: Waits, rank: int
) -> dict[tuple[int, str], float]:
    """(late rank, cause) → seconds.  Timed chores are compared step by step; sampled ones over the
    window, since one step holds a sample or none."""
    found: dict[tuple[int, str], float] = defaultdict(float)
    left: dict[int, tuple[float, float]] = {}
    for b in seen.behind(rank):
        mine = timed(seen.steps[rank][b.step])
        parts = _more(timed(seen.steps[b.late][b.step]), mine, b.later)
        for cause, part in parts.items():
            found[b.late, cause] += b.waited * part
        rest = 1.0 - sum(parts.values())
        waited, later = left.get(b.late, (0.0, 0.0))
        left[b.late] = waited + b.waited * rest, later + b.later * rest
    own = sampled(evidences[rank])
    for late, (waited, later) in left.items():
        for cause, part in _more(sampled(evidences[late]), own, later).items():
            found[late, cause] += waited * part
    return found


def _more(late: Mapping[str, float], mine: Mapping[str, float], later: float) -> dict[str, float]:
    """Parts of ``later`` seconds that the late rank spent on each chore; they sum to at most 1."""
    extra = {c: s - mine.get(c, 0.0) for c, s in late.items() if s > mine.get(c, 0.0)}
    whole = max(later, sum(extra.values()))
    return {c: s / whole for c, s in extra.items()} if whole > 0 else {}


Reason = tuple[str, tuple[str, ...]]
"""A cause, and what shows it."""


def _clue(reason: Reason, seconds: float, text: str) -> Clue:
    cause, lines = reason
    return Clue(cause=cause, seconds=seconds, evidence=(text, *lines), confidence="medium")


def _straggling(evidences: Sequence[Evidence], seen: Waits) -> Reason:
    """Whether the late rank is late by its data, or always the same at equal work."""
    late = _late(seen)
    line = (
        f"the slowest rank works {percent(_imbalance(seen))} longer than the mean in the median "
        "step"
    )
    who, times = Counter(late).most_common(1)[0] if late else (0, 0)
    often, rank = times / max(1, len(late)), evidences[who].rank
    if often > 0.9 and not _more_content(evidences, who):
        text = f"it is rank {rank} in {percent(often)} of the steps, at equal work"
        return "comm.straggler-device", (line, text)
    return "comm.straggler-data", (line, f"rank {rank} is last in {percent(often)} of them")


def _late(seen: Waits) -> list[int]:
    steps = zip(*seen.work, strict=True)
    return [max(range(len(row)), key=row.__getitem__) for row in steps]


def _imbalance(seen: Waits) -> float:
    """Median over steps of max/mean - 1."""
    rows = [row for row in zip(*seen.work, strict=True) if sum(row) > 0]
    return statistics.median(max(r) / statistics.fmean(r) - 1 for r in rows) if rows else 0.0


def _more_content(evidences: Sequence[Evidence], who: int) -> bool:
    """Has the late rank more tokens, or more CPU work, than the others?"""
    tokens = [e.total.tokens - e.total.pad_tokens for e in evidences]
    if all(tokens) and tokens[who] > 1.05 * statistics.fmean(tokens):
        return True
    cpu = [e.total.cpu - e.total.input_cpu for e in evidences]
    return cpu[who] > 1.05 * statistics.fmean(cpu)


def _transport(evidences: Sequence[Evidence]) -> Reason:
    """All arrive together: too many collectives, or slow ones."""
    total = evidences[0].total
    steps = max(1, len(evidences[0].chosen.steps))
    ddp = evidences[0].process.ddp
    synced = total.synced_backwards / steps
    buckets = sum(int(d.get("buckets", 1)) for d in ddp)
    moved = sum(int(d.get("bytes", 0)) for d in ddp)
    calls = synced * max(1, buckets) + total.comm_n / steps
    line = f"{calls:.0f} collectives per optimizer step, {total.backward_n / steps:.0f} backward"
    if synced > 1.5:
        return "comm.too-many", (
            line,
            f"gradients are all-reduced in {synced:.0f} backward passes a step: once would do",
        )
    if buckets >= FEW_BUCKETS and moved / buckets < SMALL_BUCKET:
        return "comm.too-many", (line, f"{buckets} buckets of {size(moved / buckets)}")
    if total.comm_n / steps > 2 * FEW_BUCKETS:
        return "comm.too-many", (line, f"{total.comm_n / steps:.0f} of them from Python")
    return "comm.exposed", (line, f"all ranks arrive together; {size(moved)} of gradients a step")
