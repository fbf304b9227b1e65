"""What keeps the training thread from training: the interpreter, compilers, and periodic work."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from collections.abc import Sequence

from brim.diagnose.causes import REPORTED_FROM
from brim.diagnose.live.clues import Clue, where
from brim.diagnose.live.evidence import Evidence, Site
from brim.diagnose.live.inputs import Machine
from brim.diagnose.live.loaderless import PLACED
from brim.diagnose.live.placing import AFTER
from brim.diagnose.live.stacks import (
    COMPUTE,
    COPY,
    EVALUATE,
    LOG,
    METRIC,
    NOW_AND_THEN,
    SAVE,
    TRACE,
    function_of,
    short,
    site,
)
from brim.record.findings import Where
from brim.record.steps import Step
from brim.units import duration, percent

STARVED = 0.12
"""Share of the time without a core, from which on the training thread is called starved."""
PAUSED = 2
"""Mark of a probed step in which torch's profiler paused, too."""
ENOUGH = 20
"""Steps between probes that are compared with them rather than all steps of the window."""
MANY = 0.1
"""Share of the steps in which a stack was seen, from which on it may be a part of every step."""
PRESSURE = 0.1
"""Share of the time in which tasks waited for memory, from which on it is called short."""


def clues(evidence: Evidence, machine: Machine, *, memory_stall: float | None) -> list[Clue]:
    found = [
        _gc(evidence),
        _flush(evidence),
        _lock(evidence),
        _recompile(evidence),
        _debug(evidence),
        *_periodic(evidence),
        _cores(evidence, machine),
        _pressure(evidence, memory_stall),
    ]
    return [clue for clue in found if clue is not None]


def _gc(evidence: Evidence) -> Clue | None:
    total = evidence.total
    if total.gc <= 0:
        return None
    return Clue(
        cause="host.gc",
        seconds=evidence.seconds.get("gc", 0.0),
        evidence=(
            f"automatic garbage collection took {duration(total.gc)} of {duration(evidence.wall)} "
            f"on the training thread, in {total.gc_n} collections "
            f"({total.gc_generation_2} of the oldest generation)",
        ),
        after=0.0,
    )


def _flush(evidence: Evidence) -> Clue | None:
    """Asked-for collections and cache flushes; the allocator's own retries are another cause."""
    total = evidence.total
    seconds = evidence.seconds.get("collect", 0.0) + evidence.seconds.get("flush", 0.0)
    if seconds <= 0:
        return None
    lines = []
    if total.collect_n:
        lines.append(
            f"gc.collect() was called {total.collect_n} times and took {duration(total.collect)} "
            f"of {duration(evidence.wall)}"
        )
    if total.flush_n:
        lines.append(
            f"torch.cuda.empty_cache() was called {total.flush_n} times and took "
            f"{duration(total.flush)}; the memory is allocated anew each time"
        )
    return Clue(
        cause="memory.cache-flush",
        seconds=seconds,
        evidence=tuple(lines),
        where=_caller(evidence, "collect"),
        after=0.0,
    )


def _caller(evidence: Evidence, what: str) -> Where | None:
    """The line that asked most often."""
    lines = {k: n for k, (n, _) in evidence.total.reads.items() if k.startswith(what + "|")}
    if not lines:
        return None
    file, _, line = max(lines, key=lines.__getitem__).partition("|")[2].rpartition(":")
    return Where(file=file, line=int(line))


def _lock(evidence: Evidence) -> Clue | None:
    """Samples in which the training thread was off its core while another Python thread ran and
    the sampler itself had to wait for the interpreter lock."""
    seconds = sum(s.locked for s in evidence.sites)
    if seconds <= 0 or not evidence.thieves:
        return None
    thief = evidence.thieves[0]
    return Clue(
        cause="host.gil",
        seconds=min(seconds, evidence.wall),
        evidence=(
            f"for {duration(seconds)} of {duration(evidence.wall)} another thread of the process "
            f"held the interpreter lock, most of it in {function_of(thief.stack)}",
        ),
        where=where(site(thief.stack)),
        after=0.0,
    )


def _recompile(evidence: Evidence) -> Clue | None:
    seconds = evidence.seconds.get("compile", 0.0)
    if seconds <= 0:
        return None
    total = evidence.total
    seen = {p for s in evidence.of("compile") for p in s.steps}
    seen |= {i for i, s in enumerate(evidence.chosen.steps) if s.compile_n}
    tops = [s for s in evidence.of("compile") if site(s.stack)]
    lines = [
        f"compilation took {duration(seconds)} of {duration(evidence.wall)}, in {len(seen)} of "
        f"{len(evidence.chosen.steps)} steps after the warm-up"
    ]
    if total.compile_n:
        lines.append(f"torch.compile compiled {total.compile_n} times")
    return Clue(
        cause="host.recompile",
        seconds=seconds,
        evidence=tuple(lines),
        where=where(site(tops[0].stack)) if tops else None,
        after=0.0,
    )


LASTING = ("torch.profiler", "tracemalloc")
"""Modes that gather something for the program: the hooks let torch's profiler pause where it is on
in every step, and never end either."""


def _debug(evidence: Evidence) -> Clue | None:
    """What the modes cost is measured by steps without them; where that was not possible, by the
    samples in the tracer or in anomaly mode's bookkeeping (a lower bound)."""
    modes = evidence.total.debug
    if not modes:
        return None
    seen = evidence.seconds.get(TRACE, 0.0) + _tracer_seconds(evidence, modes)
    seconds, how, sure = seen, f"at least {duration(seen)} of {duration(evidence.wall)}", False
    how += " by samples"
    if len(evidence.chosen.probed) >= 3 and (_paused(evidence) or not set(modes) <= set(LASTING)):
        seconds, how = _probed(evidence)
        sure = True
    elif (by_itself := _switched(evidence, modes)) is not None:
        seconds, how = max(seen, by_itself[0]), by_itself[1]
        sure = True
    return Clue(
        cause="host.debug-mode",
        seconds=min(seconds, evidence.wall),
        confidence="high" if sure else "medium",
        evidence=(f"on in the measured steps: {', '.join(modes)}", how),
        where=_tracer(modes),
        after=0.0,
    )


def _paused(evidence: Evidence) -> bool:
    return any(s.probe == PAUSED for s in evidence.chosen.probed)


def _probed(evidence: Evidence) -> tuple[float, str]:
    """By the steps for which the hooks switched the modes off, and those between them."""
    probed = evidence.chosen.probed
    between = [s for s in evidence.chosen.steps if probed[0].n < s.n < probed[-1].n]
    like = between if len(between) >= ENOUGH else evidence.chosen.steps
    slow = statistics.median(s.wall - s.input_wait for s in like)
    fast = statistics.median(s.wall - s.input_wait for s in probed)
    how = (
        f"a step takes {duration(slow)} with it and {duration(fast)} without, measured by "
        f"switching it off for {len(probed)} steps"
    )
    if _paused(evidence):
        how += ", which the profiler's trace lacks"
    return max(0.0, slow - fast) * len(evidence.chosen.steps), how


def _switched(evidence: Evidence, modes: list[str]) -> tuple[float, str] | None:
    """By steps that the program itself took with and without a mode; None where it is always on.

    Means, since what such a mode has gathered is written out in some of its steps.  A line knows
    the modes at its start; a step is without one when the next line begins without it too.
    """
    lasting = [mode for mode in modes if mode in LASTING]
    steps = evidence.chosen.steps
    on: list[float] = []
    off: list[float] = []
    for step, following in itertools.pairwise(steps):
        with_it = any(mode in s.debug for mode in lasting for s in (step, following))
        (on if with_it else off).append(step.wall - step.input_wait)
    if not lasting or len(on) < 3 or len(off) < 3:
        return None
    more = statistics.fmean(on) - statistics.fmean(off)
    how = (
        f"a step takes {duration(statistics.fmean(on))} in {len(on)} steps with it and "
        f"{duration(statistics.fmean(off))} in {len(off)} steps without"
    )
    return max(0.0, more) * len(on), how


_BY_ENVIRONMENT = {
    "PYTHONDEVMODE": ("1",),
    "PYTHONMALLOC": ("debug", "malloc_debug", "pymalloc_debug"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL",),
    "MALLOC_CHECK_": ("1", "2", "3"),
}


def unpriced_modes(evidence: Evidence) -> list[str]:
    """Modes that are on in every step and leave no sample: their cost is not known."""
    variables = evidence.process.header.env
    found = [
        f"{name}={variables[name]}"
        for name, values in _BY_ENVIRONMENT.items()
        if variables.get(name) in values
    ]
    modes = [mode for mode in evidence.total.debug if mode in LASTING]
    modes = [mode for mode in modes if mode != "torch.profiler" or not _paused(evidence)]
    if not modes or evidence.seconds.get(TRACE, 0.0) > 0 or _switched(evidence, modes) is not None:
        return found
    return modes + found


def _tracer_seconds(evidence: Evidence, modes: list[str]) -> float:
    places = {m.rsplit(" ", 1)[-1].rstrip(")").rpartition(":")[0] for m in modes if m[:3] == "sys"}
    seconds = 0.0
    for entry in evidence.sites:
        if entry.stack.frames and entry.stack.frames[0].file in places and entry.kind != TRACE:
            seconds += entry.wall
    return seconds


def _tracer(modes: list[str]) -> Where | None:
    for mode in modes:
        file, _, line = mode.rsplit(" ", 1)[-1].rstrip(")").rpartition(":")
        if file and line.isdigit():
            return Where(file=file, line=int(line))
    return None


_WORK = {
    SAVE: "saving (checkpoints, images)",
    LOG: "logging",
    EVALUATE: "evaluation",
    METRIC: "counting metrics",
    COPY: "copying or averaging the weights",
    NOW_AND_THEN: "work that only long steps do",
    AFTER: "work after the optimizer's step",
}


def _periodic(evidence: Evidence) -> list[Clue]:
    """Saving, logging, evaluating and the like are one cause; the largest of them names it."""
    found = []
    for kind, doing in _WORK.items():
        seconds = evidence.seconds.get(kind, 0.0)
        sites = evidence.of(kind)
        if seconds > 0:
            found.append(_period(evidence, kind, doing, seconds, sites))
    return found


def _period(evidence: Evidence, kind: str, doing: str, seconds: float, sites: list[Site]) -> Clue:
    steps = evidence.chosen.steps
    seen = sorted({p for s in sites for p in s.steps})
    often = _every(seen, len(steps)) if _lengthens(steps, seen) else "spread over all steps"
    counts = {SAVE: [s.save_n for s in steps], EVALUATE: [s.evaluation_n for s in steps]}
    if any(exact := counts.get(kind, [])):
        often = _every([i for i, n in enumerate(exact) if n], len(steps))
    top = f", most of it in {function_of(sites[0].stack)}" if sites else ""
    return Clue(
        cause="host.periodic",
        seconds=seconds,
        evidence=(
            f"{doing} took {duration(seconds)} of {duration(evidence.wall)} on the training "
            f"thread, {often}{top}",
        ),
        where=where(site(sites[0].stack)) if sites else None,
        confidence="medium" if kind == AFTER else "high",
        report_from=PLACED if kind == AFTER else REPORTED_FROM,
        after=0.0,
        facts={"kind": kind} | ({"copies": 1} if kind == COPY else {}),
    )


def _lengthens(steps: Sequence[Step], seen: list[int]) -> bool:
    """Are the steps in which it was seen longer than the others?  A sample hits a short step now
    and then, whatever is done in each of them."""
    hit = set(seen)
    others = [s.wall for i, s in enumerate(steps) if i not in hit]
    if len(seen) < MANY * len(steps) or len(others) < len(seen):
        return True
    return statistics.median(steps[i].wall for i in seen) > 1.2 * statistics.median(others)


def _every(seen: Sequence[int], steps: int) -> str:
    """``every 20 steps``, by the most frequent distance."""
    if len(seen) >= 0.7 * steps:
        return "in every step"
    gaps = Counter(b - a for a, b in itertools.pairwise(seen) if b - a > 1)
    if gaps and gaps.most_common(1)[0][1] >= 2:
        return f"every {gaps.most_common(1)[0][0]} steps"
    return f"in {len(seen)} of {steps} steps"


def _cores(evidence: Evidence, machine: Machine) -> Clue | None:
    """The training thread itself waits for a core, outside the loader."""
    delay = evidence.total.run_delay
    if delay is None or evidence.wall <= 0 or delay < STARVED * evidence.wall:
        return None
    threads = (evidence.process.header.threads or 1) * machine.ranks
    limited = machine.usable < machine.machine or machine.throttled > 0.05
    crowded = threads >= 2 * machine.usable
    if not limited and not crowded:
        return None
    starved = (
        f"the training thread was runnable without a core for {duration(delay)} of "
        f"{duration(evidence.wall)}",
        f"the training processes run {threads} compute threads; they may use "
        f"{machine.usable:g} of the machine's {machine.machine} cores",
    )
    if limited:
        return Clue(cause="input.cpu-limit", seconds=delay, confidence="medium", evidence=starved)
    return _crowded(evidence, machine, threads, delay, starved)


def _crowded(
    evidence: Evidence, machine: Machine, threads: int, delay: float, starved: tuple[str, ...]
) -> Clue:
    """More compute threads than cores: an operation ends when the last of its threads has had a
    core.  Beside other ranks, or a device, the thread may be off its core for their sake."""
    off_core = _off_core(evidence)
    alone = machine.ranks == 1 and evidence.process.device is None
    waits = (
        f"it was off its core for {duration(off_core)} while computing: it waits for its own "
        "threads, which wait for cores"
    )
    return Clue(
        cause="input.oversubscription",
        seconds=max(delay, off_core) if alone else delay,
        confidence="medium",
        evidence=(*starved, waits) if alone else starved,
        facts={"training_threads": threads, "usable": f"{machine.usable:g}"},
    )


def _off_core(evidence: Evidence) -> float:
    """Seconds of computing in which the training thread was not on a core."""
    sites = evidence.of(COMPUTE)
    wall, cpu = sum(s.wall for s in sites), sum(s.cpu for s in sites)
    return evidence.seconds.get(COMPUTE, 0.0) * max(0.0, 1.0 - cpu / wall) if wall else 0.0


def _pressure(evidence: Evidence, memory_stall: float | None) -> Clue | None:
    if memory_stall is None or memory_stall < PRESSURE:
        return None
    return Clue(
        cause="memory.pressure",
        seconds=min(memory_stall, 1.0) * evidence.wall,
        confidence="medium",
        evidence=(
            f"in {percent(memory_stall)} of the time some task waited for memory: the host "
            "reclaims or swaps",
        ),
    )


def describe(entry: Site) -> str:
    """A site in one clause."""
    place = site(entry.stack)
    at = f" at {short(place.file)}:{place.line}" if place else ""
    return f"{function_of(entry.stack)}{at}"
