"""Input work that no torch DataLoader does: in the loop, or behind a queue of the program's own."""

from __future__ import annotations

from brim.diagnose.causes import REPORTED_FROM
from brim.diagnose.live.clues import Clue, where
from brim.diagnose.live.evidence import Evidence
from brim.diagnose.live.placing import BEFORE
from brim.diagnose.live.stacks import FETCH, PREPARE, QUEUE, SLEEP, function_of, site
from brim.units import duration

PLACED = 0.1
"""Share from which on work that only its place tells is a finding: a loop's own Python is less."""
SPARE = 0.5
"""Cores that another worker needs to be of use."""
ON_CORE = 0.3
"""A training thread that computes less than this share of the time while it loads waits for
storage."""


def clues(evidence: Evidence) -> list[Clue]:
    found = [_in_loop(evidence, PREPARE), _in_loop(evidence, FETCH), _in_loop(evidence, BEFORE)]
    return [clue for clue in found if clue is not None]


def _in_loop(evidence: Evidence, kind: str) -> Clue | None:
    """Samples are prepared in the loop itself, outside any loader; a thread that is off its core
    meanwhile waits for where they lie."""
    sites = evidence.of(kind)
    seconds = evidence.seconds.get(kind, 0.0)
    if not sites or seconds <= 0:
        return None
    off_core, by_place = min(seconds, _off_core(evidence, kind)), kind == BEFORE
    alone = evidence.process.device is None and evidence.process.header.world == 1
    top, blocked = sites[0], kind == FETCH or (alone and off_core > (1.0 - ON_CORE) * seconds)
    doing = "waits for samples" if blocked else "prepares samples"
    doing = "works before the forward pass" if by_place else doing
    return Clue(
        cause="input.storage" if blocked else "input.main-process",
        seconds=seconds,
        evidence=(
            f"the training loop itself {doing}: {duration(seconds)} of "
            f"{duration(evidence.wall)}, most of it in {function_of(top.stack)}",
            f"the thread was off its core for {duration(off_core)} of that",
        ),
        where=where(site(top.stack)),
        confidence="medium" if by_place else "high",
        report_from=PLACED if by_place else REPORTED_FROM,
        facts={"in_loop": 1},
    )


def _off_core(evidence: Evidence, kind: str) -> float:
    """Seconds in which the thread neither computed nor wanted a core, outside the loader and what
    waits by its nature.

    Of the whole window: a sample's CPU time is that of some 50 ms, and not of its stack alone.
    """
    total = evidence.total
    waits = sum(evidence.seconds.get(k, 0.0) for k in (SLEEP, QUEUE, FETCH) if k != kind)
    loader = max(0.0, total.input_wait - total.input_cpu)
    return max(0.0, evidence.wall - total.cpu - (total.run_delay or 0.0) - loader - waits)


def queue(evidence: Evidence, *, cores: float, used: float | None) -> Clue | None:
    """The loop waits in a queue that is not a torch DataLoader's.  Where no core is left, more
    threads or processes behind it would not help.

    ``cores``: usable ones; ``used``: those that the job used, where that is known.
    """
    sites = evidence.of(QUEUE)
    seconds = evidence.seconds.get(QUEUE, 0.0)
    if not sites or seconds <= 0:
        return None
    full = used is not None and cores - used < SPARE
    lines = [
        f"the loop waited {duration(seconds)} of {duration(evidence.wall)} in a queue that is "
        "no torch DataLoader's; what fills it was not seen",
    ]
    if used is not None:
        lines.append(f"the job used {used:.1f} of {cores:g} usable cores")
    return Clue(
        cause="input.decode" if full else "input.workers",
        seconds=seconds,
        confidence="low" if used is None else "medium",
        evidence=tuple(lines),
        facts={"custom": 1},
        where=where(site(sites[0].stack)),
    )
