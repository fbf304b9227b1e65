"""What a rank does in a step besides training it, as causes with seconds.

What has hooks around it is exact in every step; what only samples show is exact over many steps.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Final

from brim.diagnose.live import placing, stacks
from brim.diagnose.live.evidence import Evidence
from brim.record.steps import Step

INPUT: Final = "input"
"""Stands for whatever ``input.*`` the rank's own rules find."""

TIMED: Final[dict[str, str]] = {
    "gc": "host.gc",
    "collect": "memory.cache-flush",
    "flush": "memory.cache-flush",
    "compile": "host.recompile",
    "save": "host.periodic",
    "evaluation": "host.periodic",
}
"""Exact seconds of a step → the cause that they are."""

_SAMPLED: Final[dict[str, str]] = {
    stacks.PREPARE: INPUT,
    stacks.FETCH: INPUT,
    stacks.QUEUE: INPUT,
    stacks.COMPILE: "host.recompile",
    stacks.SAVE: "host.periodic",
    stacks.LOG: "host.periodic",
    stacks.METRIC: "host.periodic",
    stacks.COPY: "host.periodic",
    stacks.NOW_AND_THEN: "host.periodic",
    placing.BEFORE: INPUT,
    placing.AFTER: "host.periodic",
}

DOING: Final[dict[str, str]] = {
    INPUT: "waited for its batch",
    "host.gc": "collected garbage",
    "memory.cache-flush": "emptied caches",
    "host.recompile": "compiled",
    "host.periodic": "saved, logged or evaluated",
}


def timed(step: Step) -> dict[str, float]:
    """Cause → seconds, as the hooks timed them."""
    found: dict[str, float] = defaultdict(float)
    found[INPUT] += step.input_wait
    for name, cause in TIMED.items():
        found[cause] += getattr(step, name)
    return found


def sampled(evidence: Evidence) -> Mapping[str, float]:
    """Cause → seconds of the whole window, without what :func:`timed` counts."""
    found: dict[str, float] = defaultdict(float)
    for entry in evidence.sites:
        cause = _SAMPLED.get(entry.kind)
        if entry.kind == stacks.EVALUATE and not evidence.total.evaluation:
            cause = "host.periodic"
        if cause is not None and entry.stack.phase != entry.kind:  # a phase is a hook's
            found[cause] += entry.wall
    return found
