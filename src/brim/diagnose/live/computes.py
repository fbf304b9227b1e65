"""The training thread (or the device) is busy, but part of the work is not useful."""

from __future__ import annotations

from brim.diagnose.live.clues import Clue, where
from brim.diagnose.live.evidence import Evidence
from brim.diagnose.live.stacks import COMPUTE, RECOMPUTE, site
from brim.units import duration, percent


def clues(evidence: Evidence, *, memory_free: float | None) -> list[Clue]:
    """``memory_free``: share of the memory that holds activations which was never used."""
    found = [_padding(evidence), _recompute(evidence, memory_free)]
    return [clue for clue in found if clue is not None]


def pad_share(evidence: Evidence) -> float | None:
    """Padding tokens of all tokens in the batches that the loop received."""
    total = evidence.total
    return total.pad_tokens / total.tokens if total.tokens else None


def _padding(evidence: Evidence) -> Clue | None:
    """Linear layers cost by the token, so a padded token costs what a real one does; attention
    over the padded length costs more still, which is left out: a lower bound."""
    share = pad_share(evidence)
    computing = evidence.seconds.get(COMPUTE, 0.0) + evidence.seconds.get(RECOMPUTE, 0.0)
    if not share or computing <= 0:
        return None
    total = evidence.total
    rows = total.counted_batches
    return Clue(
        cause="compute.padding",
        seconds=share * computing,
        evidence=(
            f"{percent(share)} of the tokens that reached the model are padding "
            f"({total.pad_tokens:,} of {total.tokens:,} in {rows} batches; the longest row has "
            f"{total.longest:,})",
            f"computing takes {duration(computing)} of {duration(evidence.wall)}",
        ),
        after=0.0,
        facts={"pad_share": share},
    )


def _recompute(evidence: Evidence, memory_free: float | None) -> Clue | None:
    seconds = evidence.seconds.get(RECOMPUTE, 0.0)
    sites = evidence.of(RECOMPUTE)
    if seconds <= 0 or (memory_free is not None and memory_free < 0.3):
        return None
    free = f"; {percent(memory_free)} of the memory was never used" if memory_free else ""
    return Clue(
        cause="compute.recompute",
        seconds=seconds,
        confidence="high" if memory_free else "medium",
        evidence=(
            f"forward passes that activation checkpointing runs again took {duration(seconds)} of "
            f"{duration(evidence.wall)}{free}",
        ),
        where=where(site(sites[0].stack)) if sites else None,
        after=0.0,
    )
