"""Who holds the others up, seen live: ranks of one running job, from the ends of their records.

On hosts without an accelerator a rank that waits in a collective is off its core, so waiting is
seen (:func:`brim.diagnose.live.ranks.waiting`).  Beside an accelerator the host runs ahead and
spins where it waits: there only what each rank has to do, its tokens, can be compared, and who
arrives late is for the traces to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from brim.diagnose.live.ranks import waiting
from brim.record.steps import Step

FEWEST = 5
"""Steps that all ranks have taken, under which nothing is said."""


class RanksView(msgspec.Struct, frozen=True, kw_only=True):
    """Several ranks over the same steps."""

    steps: int
    wait: dict[int, float] | None = None
    """Rank → share of its time in which it waits for others; None beside an accelerator."""
    last: int | None = None
    """The rank that works longest in most steps."""
    last_share: float | None = None
    """In how many of the steps it is that rank."""
    longer: float | None = None
    """By how much the longest work exceeds the mean, in the mean step."""
    tokens: dict[int, float] | None = None
    """Rank → its real tokens over the mean of all ranks; None where they are not counted."""


def across(ranks: Mapping[int, Sequence[Step]], *, on_device: bool) -> RanksView | None:
    """``ranks``: rank → its last steps; None with fewer than two ranks or too few common steps."""
    by_number = {rank: {s.n: s for s in steps} for rank, steps in ranks.items()}
    common = sorted(set.intersection(*map(set, by_number.values()))) if by_number else []
    if len(by_number) < 2 or len(common) < FEWEST:
        return None
    rows = {rank: [steps[n] for n in common] for rank, steps in by_number.items()}
    tokens = _relative({r: float(sum(s.tokens - s.pad_tokens for s in rows[r])) for r in rows})
    if on_device:
        return RanksView(steps=len(common), tokens=tokens)
    waits = {rank: [waiting(s) for s in steps] for rank, steps in rows.items()}
    work = {r: [s.wall - w for s, w in zip(rows[r], waits[r], strict=True)] for r in rows}
    last, share = _most_often(work)
    return RanksView(
        steps=len(common),
        wait={r: sum(waits[r]) / max(1e-9, sum(s.wall for s in rows[r])) for r in rows},
        last=last,
        last_share=share,
        longer=_longer(work),
        tokens=tokens,
    )


def words(view: RanksView) -> str:
    """One line for the view; empty when the ranks do alike."""
    parts = []
    if view.wait and view.longer is not None and view.longer >= _WORTH:
        most = max(view.wait, key=view.wait.__getitem__)
        parts.append(
            f"rank {view.last} is last in {view.last_share:.0%} of steps, "
            f"{view.longer:.0%} over the mean; rank {most} waits {view.wait[most]:.0%}"
        )
    if view.tokens:
        heavy = max(view.tokens, key=view.tokens.__getitem__)
        if view.tokens[heavy] - 1 >= _WORTH:
            parts.append(f"rank {heavy} has {view.tokens[heavy] - 1:.0%} more tokens than the mean")
    return "; ".join(parts)


_WORTH = 0.05


def _most_often(work: Mapping[int, Sequence[float]]) -> tuple[int, float]:
    order = sorted(work)
    late = Counter(max(order, key=row.__getitem__) for row in _by_step(work))
    rank, times = late.most_common(1)[0]
    return rank, times / sum(late.values())


def _by_step(work: Mapping[int, Sequence[float]]) -> list[dict[int, float]]:
    steps = len(next(iter(work.values())))
    return [{rank: seconds[at] for rank, seconds in work.items()} for at in range(steps)]


def _longer(work: Mapping[int, Sequence[float]]) -> float:
    """What balance would give back: the sum of the longest over the sum of the means, less 1."""
    rows = _by_step(work)
    mean = sum(sum(row.values()) / len(row) for row in rows)
    return sum(max(row.values()) for row in rows) / mean - 1 if mean > 0 else 0.0


def _relative(counts: Mapping[int, float]) -> dict[int, float] | None:
    if not all(counts.values()):
        return None
    mean = sum(counts.values()) / len(counts)
    return {rank: count / mean for rank, count in counts.items()}
