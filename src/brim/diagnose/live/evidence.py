"""Sums over the measured window of one rank: where the training thread's time went.

Times with hooks around them (input, garbage collection, compilation, saving, …) are exact; what
lies between is split by the sampled stacks, scaled so that the parts sum to the wall time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from brim.diagnose.live import stacks
from brim.diagnose.live.occasional import belongs_to_a_step, occasional
from brim.diagnose.live.placing import place
from brim.diagnose.live.window import Chosen
from brim.record.steps import Process, Stack, Step, merge

EXACT = {
    "input": "input_wait",
    "gc": "gc",
    "collect": "collect",
    "flush": "flush",
    "compile": "compile",
    "save": "save",
}
"""Phase of a sample → the field of :class:`Step` that holds its exact seconds."""


@dataclass(kw_only=True, slots=True)
class Site:
    """One stack, summed over the window."""

    stack: Stack
    kind: str
    count: int = 0
    wall: float = 0.0
    cpu: float = 0.0
    locked: float = 0.0
    steps: list[int] = field(default_factory=list)
    """Positions in the window of the steps in which it was seen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One rank's window."""

    rank: int
    process: Process
    chosen: Chosen
    total: Step
    """All measured steps as one."""
    wall: float
    seconds: Mapping[str, float]
    """Kind (a phase of EXACT or a kind of ``stacks``) → seconds; they sum to ``wall``."""
    sites: list[Site]
    """Longest first."""
    thieves: list[Site]
    """Stacks of threads that held the interpreter lock."""

    def share(self, kind: str) -> float:
        return self.seconds.get(kind, 0.0) / self.wall if self.wall else 0.0

    def of(self, *kinds: str) -> list[Site]:
        return [s for s in self.sites if s.kind in kinds]

    @property
    def step_s(self) -> float:
        return self.wall / max(1, len(self.chosen.steps))


def gather(process: Process, chosen: Chosen) -> Evidence:
    """Sum up one process's window; an empty window has wall 0 and no kinds."""
    total = merge(chosen.steps) if chosen.steps else Step()
    sites = _sites(process, chosen)
    own = [s for s in sites if s.stack.phase != "thief"]
    return Evidence(
        rank=process.header.rank,
        process=process,
        chosen=chosen,
        total=total,
        wall=chosen.wall,
        seconds=_split(total, chosen.wall, own),
        sites=own,
        thieves=[s for s in sites if s.stack.phase == "thief"],
    )


def _sites(process: Process, chosen: Chosen) -> list[Site]:
    found: dict[str, Site] = {}
    for position, step in enumerate(chosen.steps):
        for key, (count, wall, cpu, locked) in step.samples.items():
            stack = process.stacks.get(key)
            if stack is None:
                stack = Stack(id=key)
            site = found.setdefault(key, Site(stack=stack, kind=_kind(stack)))
            site.count += count
            site.wall += wall
            site.cpu += cpu
            site.locked += locked
            site.steps.append(position)
    _rename_occasional(chosen, found.values())
    if process.device is None:
        place(found.values())
    else:
        _forget_metrics(found.values())
    return sorted(found.values(), key=lambda s: -s.wall)


def _rename_occasional(chosen: Chosen, sites: Collection[Site]) -> None:
    lines = occasional(chosen.steps, sites)
    for entry in sites if lines else ():
        if not belongs_to_a_step(entry) and not lines.isdisjoint(entry.stack.frames):
            entry.kind = stacks.NOW_AND_THEN


def _forget_metrics(sites: Collection[Site]) -> None:
    """With a device, Python that counts or prints mostly waits for it: a place or a name tells
    nothing about whose time that is."""
    for entry in sites:
        if entry.kind == stacks.METRIC:
            entry.kind = stacks.PYTHON


def _kind(stack: Stack) -> str:
    """The hook's phase where it says what happens, else what the stack says."""
    if stack.phase in EXACT:
        return stack.phase
    kind = stacks.kind_of(stack)
    if kind in (stacks.COMPUTE, stacks.PYTHON) and stacks.evaluates(stack):
        return stacks.EVALUATE
    if kind == stacks.PYTHON and stack.phase in ("backward", "optimizer"):
        return stacks.COMPUTE
    return kind


def _split(total: Step, wall: float, sites: list[Site]) -> dict[str, float]:
    """Exact seconds, and the rest by samples."""
    if wall <= 0:
        return {}
    seconds: dict[str, float] = {
        kind: value for kind, name in EXACT.items() if (value := getattr(total, name)) > 0
    }
    rest = max(0.0, wall - sum(seconds.values()))
    sampled: dict[str, float] = defaultdict(float)
    for site in sites:
        if site.stack.phase not in EXACT:
            sampled[site.kind] += site.wall
    _raise_evaluation(total, rest, sampled)
    seen = sum(sampled.values())
    if seen == 0:  # no stack was looked at: a step of brim's own trainer says where it was itself
        sampled, seen = _timed(total, rest), rest or 1.0
    for kind, value in sampled.items():
        seconds[kind] = seconds.get(kind, 0.0) + value * rest / seen
    scale = wall / sum(seconds.values()) if wall and sum(seconds.values()) else 1.0
    return {kind: value * scale for kind, value in seconds.items()}


def _timed(total: Step, rest: float) -> dict[str, float]:
    """``rest`` seconds by what a trainer timed itself; what it did not time is not told apart."""
    evaluating = min(rest, total.evaluation)
    computing = min(rest - evaluating, total.backward + total.optimizer)
    named = {stacks.EVALUATE: evaluating, stacks.COMPUTE: computing}
    found = {kind: value for kind, value in named.items() if value > 0}
    return found | {stacks.PYTHON: rest - evaluating - computing}


def _raise_evaluation(total: Step, rest: float, sampled: dict[str, float]) -> None:
    """The time from ``model.eval()`` to ``model.train()`` is exact where the calls were seen."""
    exact = total.evaluation
    seen = sum(sampled.values())
    if exact <= 0 or seen <= 0 or rest <= 0:
        return
    wanted = min(exact / rest, 1.0) * seen
    missing = wanted - sampled.get(stacks.EVALUATE, 0.0)
    if missing > 0:
        others = seen - sampled.get(stacks.EVALUATE, 0.0)
        for kind in list(sampled):
            if kind != stacks.EVALUATE and others > 0:
                sampled[kind] -= sampled[kind] * missing / others
        sampled[stacks.EVALUATE] = wanted
