"""Measured steps as rows of the long report: ``details["steps"]`` of a run without a device.

What has hooks around it is exact in every step: waits for the loader, collection, compilation,
saving, evaluation, waits for other ranks.  What lies between is split as the samples split it over
the whole window, because one step holds a sample or two.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from brim.diagnose.causes import UNKNOWN, family
from brim.diagnose.live.chores import INPUT, timed
from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import EXACT, Evidence
from brim.diagnose.live.ranks import waiting
from brim.diagnose.live.stacks import COMPUTE, EVALUATE, RECOMPUTE
from brim.record.steps import Step

MAX_STEPS = 400
"""Rows of one rank."""

Row = dict[str, object]


def step_rows(ranks: Sequence[tuple[Evidence, Sequence[Clue]]]) -> list[Row]:
    """The fields of ``brim.diagnose.trace.tables.StepRow``, and ``input_us``.

    ``compute_us + exposed_comm_us + idle_us == wall_us``; ``idle_by_cause`` sums to ``idle_us``.
    """
    return [row for evidence, clues in ranks for row in _of_rank(evidence, clues, len(ranks) > 1)]


def _of_rank(evidence: Evidence, clues: Sequence[Clue], several: bool) -> Iterator[Row]:
    cause, computing, start = _input_cause(clues), _computing(evidence), 0.0
    for step in evidence.chosen.steps[:MAX_STEPS]:
        idle, comm = _idle(step, cause), waiting(step) if several else 0.0
        idle = _fitted(idle, step.wall)
        comm = min(comm, step.wall - sum(idle.values()))
        rest = step.wall - comm - sum(idle.values())
        idle[UNKNOWN] += rest * (1.0 - computing)
        longest = sorted(idle.items(), key=lambda item: -item[1])
        by_cause = {name: seconds * 1e6 for name, seconds in longest if seconds > 0}
        yield {
            "rank": evidence.rank,
            "name": f"step {step.n}",
            "start_us": start * 1e6,
            "wall_us": step.wall * 1e6,
            "compute_us": rest * computing * 1e6,
            "exposed_comm_us": comm * 1e6,
            "exposed_copy_us": 0.0,  # the training thread is the device: nothing is copied to it
            "idle_us": sum(by_cause.values()),
            "idle_by_cause": by_cause,
            "input_us": step.input_wait * 1e6,
        }
        start += step.wall


def _idle(step: Step, input_cause: str) -> dict[str, float]:
    """Cause → seconds, as the hooks timed them."""
    found: dict[str, float] = defaultdict(float)
    for cause, seconds in timed(step).items():
        found[input_cause if cause == INPUT else cause] += seconds
    return found


def _fitted(idle: dict[str, float], wall: float) -> dict[str, float]:
    """Timed parts may overlap (a collection inside an evaluation): never more than the step."""
    total = sum(idle.values())
    if total <= wall:
        return idle
    return defaultdict(float, {cause: s * wall / total for cause, s in idle.items()})


def _computing(evidence: Evidence) -> float:
    """Share of computing in the time that no hook brackets."""
    between = {k: s for k, s in evidence.seconds.items() if k not in EXACT and k != EVALUATE}
    total = sum(between.values())
    return (between.get(COMPUTE, 0.0) + between.get(RECOMPUTE, 0.0)) / total if total else 0.0


def _input_cause(clues: Sequence[Clue]) -> str:
    """What the waits for the loader are, where a rule says so."""
    steady = [c for c in clues if family(c.cause) == "input" and not c.once]
    return max(steady, key=lambda c: c.seconds).cause if steady else UNKNOWN
