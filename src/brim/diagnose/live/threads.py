"""Which ``input.*`` a wait for brim's own loader is: one process with threads, which says itself
what it did."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from brim.diagnose.live.clues import Clue
from brim.diagnose.live.window import Chosen
from brim.record.loader import LoaderLine, LoaderRecord
from brim.units import duration, percent

_UNEVEN = {
    "variance": "rows are uneven: most lie ready, and now and then one is late",
    "memory": "rows are uneven, and no more of them fit ahead: data.max_loader_bytes limits them",
}
READS = 0.5
"""Threads that read for more than this share of their time wait for storage."""
SPARE = 0.5
"""Cores from which on another thread would find one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Threads:
    """brim's loader over the window of one rank."""

    wall: float
    waited: float
    """Seconds in which the trainer waited for rows."""
    rows: int
    samples: int
    threads: int
    depth: int
    ready: float
    """Mean share of the rows ahead that lay ready when the trainer asked."""
    stages: dict[str, float]
    """Thread seconds by stage, longest first."""
    busy: float
    """Seconds of all threads with a sample in hand."""
    cpu: float
    bound_by: str
    change: str
    """The last thing that the loader changed about itself, and why."""
    deaths: int

    @property
    def reads(self) -> float:
        """Share of the threads' time with a sample in which they read."""
        return self.stages.get("read", 0.0) / self.busy if self.busy else 0.0


def gather(record: LoaderRecord | None, chosen: Chosen) -> Threads | None:
    """Sum the loader's windows that overlap the measured ones; None without any."""
    if record is None or not chosen.steps:
        return None
    begin, end = chosen.steps[0].t - chosen.steps[0].wall, chosen.steps[-1].t
    inside = [w for w in record.windows if w.t > begin and w.t - w.wall < end]
    if not inside:
        return None
    stages: dict[str, float] = defaultdict(float)
    for window in inside:
        for name, seconds in window.stages.items():
            stages[name] += seconds
    rows = sum(w.rows for w in inside)
    return Threads(
        wall=sum(w.wall for w in inside),
        waited=sum(w.waited for w in inside),
        rows=rows,
        samples=sum(w.samples for w in inside),
        threads=inside[-1].threads,
        depth=inside[-1].depth,
        ready=sum(w.ready * w.rows for w in inside) / rows if rows else 0.0,
        stages=dict(sorted(stages.items(), key=lambda item: -item[1])),
        busy=sum(w.task_wall for w in inside),
        cpu=sum(w.task_cpu for w in inside),
        bound_by=_binding(inside),
        change=next((w.change for w in reversed(inside) if w.change), ""),
        deaths=sum(begin < death.t <= end for death in record.deaths),
    )


def _binding(windows: Sequence[LoaderLine]) -> str:
    """What limited the rate for most of the time in which the trainer waited."""
    waited: dict[str, float] = defaultdict(float)
    for window in windows:
        waited[window.bound_by] += window.waited
    return max(waited, key=waited.__getitem__)


def clue(found: Threads, waited: float, *, usable: float, machine: int, ranks: int) -> Clue:
    """``waited``: seconds of the training thread; ``usable``: cores of the job, shared by
    ``ranks``; ``machine``: cores of the host."""
    mine = usable / max(1, ranks)
    used = found.cpu / found.wall if found.wall else 0.0
    top = ", ".join(
        f"{name} {percent(seconds / max(found.busy, 1e-9))}"
        for name, seconds in list(found.stages.items())[:3]
    )
    lines = [
        f"the trainer waited {duration(found.waited)} of {duration(found.wall)} for brim's loader: "
        f"{found.threads} threads, {percent(found.ready)} of {found.depth} rows ahead lay ready",
        f"its threads' time with a sample: {top}; they used {used:.1f} of {mine:.1f} cores",
    ]
    if found.deaths:
        lines.append(f"the loader died and was started again {found.deaths} times")
    if found.bound_by in _UNEVEN:
        lines.append(_UNEVEN[found.bound_by])
    if found.change:
        lines.append(f"it says: {found.change}")
    cause = _cause(found, used, mine, limited=usable < machine)
    per_sample = found.busy / found.samples if found.samples else 0.0
    lines.append(f"a sample takes a thread {duration(per_sample)}")
    facts: dict[str, float | int | str] = {"own_loader": 1, "threads": found.threads}
    return Clue(cause=cause, seconds=waited, evidence=tuple(lines), facts=facts)


def _cause(found: Threads, used: float, mine: float, *, limited: bool) -> str:
    if found.reads >= READS:
        return "input.storage"
    if mine - used >= SPARE and found.threads < mine:
        return "input.workers"
    return "input.cpu-limit" if limited else "input.decode"
