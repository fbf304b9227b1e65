"""The training thread (or the device) is busy, but part of the work is not useful."""

from __future__ import annotations

import re
from collections.abc import Sequence

from brim.diagnose.live.clues import Clue, where
from brim.diagnose.live.evidence import Evidence
from brim.diagnose.live.stacks import COMPUTE, RECOMPUTE, function_of, site
from brim.record.steps import Frame
from brim.units import duration, percent


def clues(evidence: Evidence, *, memory_free: float | None) -> list[Clue]:
    """``memory_free``: share of the memory that holds activations which was never used."""
    found = [
        _padding(evidence),
        _recompute(evidence, memory_free),
        _attention(evidence),
        _experts(evidence),
    ]
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


_ATTENTION = re.compile(r"(?!.*(sdpa|flash|scaled_dot_product)).*(attention|attn)", re.IGNORECASE)
_ON_SCORES = re.compile(r"softmax|masked_fill|\bmask\b|dropout")
_FUSED = re.compile(r"scaled_dot_product|flash_attn|dropout_p")


def _attention(evidence: Evidence) -> Clue | None:
    """Softmax, masks and dropout over scores that lie in memory, which a fused kernel never
    writes.  On a CPU: kernels tell more on a device.

    A lower bound: only forward passes have frames of Python, and the products that write and read
    the scores are not counted, since a fused kernel has them too.
    """
    if evidence.process.device is not None:
        return None
    sites = [s for s in evidence.of(COMPUTE) if _over_scores(s.stack.frames)]
    sampled = sum(s.wall for s in evidence.sites if s.kind == COMPUTE)
    if not sites or sampled <= 0:
        return None
    seconds = evidence.seconds.get(COMPUTE, 0.0) * sum(s.wall for s in sites) / sampled
    caller = next(f for f in sites[0].stack.frames if _ATTENTION.match(f.function))
    return Clue(
        cause="compute.attention",
        seconds=seconds,
        confidence="medium",
        evidence=(
            f"softmax and masks over attention scores in memory took {duration(seconds)} of "
            f"{duration(evidence.wall)} in forward passes alone, most of it in "
            f"{function_of(sites[0].stack)}",
            f"called by {caller.function}; fused attention never writes the scores",
        ),
        where=where(site(sites[0].stack)),
        after=0.0,
    )


def _over_scores(frames: Sequence[Frame]) -> bool:
    """A line of a function of attention, or a function that it calls, works on scores."""
    if len(frames) < 2:
        return False
    leaf, caller = frames[0], frames[1]
    if _ATTENTION.match(leaf.function):
        return bool(_ON_SCORES.search(leaf.text)) and not _FUSED.search(leaf.text)
    return bool(_ON_SCORES.search(leaf.function) and _ATTENTION.match(caller.function))


_EXPERTS = re.compile(r"experts?([^a-z]|$)|(^|[^a-z])moe", re.IGNORECASE)


def _experts(evidence: Evidence) -> Clue | None:
    """Where the host is inside a block of experts: the place of a loop that the trace has seen.

    No time of its own: stacks cannot tell a loop from one grouped product, launches can.
    """
    sites = [s for s in evidence.sites if _in_experts(s.stack.frames)]
    sampled = sum(s.wall for s in evidence.sites)
    if evidence.process.device is None or not sites or sampled <= 0:
        return None
    share = sum(s.wall for s in sites) / sampled
    block = next(f for f in sites[0].stack.frames if _names_experts(f))
    return Clue(
        cause="compute.expert-loop",
        seconds=0.0,
        confidence="medium",
        evidence=(
            f"the training thread is in {block.function} in {percent(share)} of its samples",
        ),
        where=where(site(sites[0].stack)),
    )


def _in_experts(frames: Sequence[Frame]) -> bool:
    return any(_names_experts(frame) for frame in frames)


def _names_experts(frame: Frame) -> bool:
    return bool(_EXPERTS.search(frame.function) or _EXPERTS.search(frame.text))
