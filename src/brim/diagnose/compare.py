"""Two diagnoses side by side: what changed, by cause, kernel class and rank, and is it noise?"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from brim.record.findings import Diagnosis, Part

FEWEST_STEPS: Final = 5
"""A bootstrap of fewer steps would state a certainty that is not there."""
_RESAMPLES: Final = 2000
_SAME_SAMPLES: Final = 0.03
_SAME_TOKENS: Final = 0.1
"""Steps that differ by less do the same work: rates are measured with noise, and the number of
tokens varies from batch to batch."""

_Floats = npt.NDArray[np.float64]


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Step times of one side, s; a step of several ranks is their mean."""

    steps: int
    median_s: float
    p10_s: float
    p90_s: float
    mean_s: float


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two."""

    name: str
    verdict: str
    device: str
    steps: int
    ranks: int
    step_s: float | None
    """Mean over the recorded steps: it is what the user waits for, rare long steps included.  The
    run's own figure (a median) where single steps were not recorded; null where no step was seen.
    """
    spread: Spread | None


class Speed(msgspec.Struct, frozen=True, kw_only=True):
    """How many times as fast B does the same work as A."""

    ratio: float
    low: float | None = None
    """95 % interval of the ratio; null when there are too few steps."""
    high: float | None = None
    work: float = 1.0
    """Samples in a step of B per samples in a step of A."""


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A named figure; null where a side lacks it."""

    name: str
    a: float | None
    b: float | None


class CauseChange(msgspec.Struct, frozen=True, kw_only=True):
    """A slice of the account: its share, and its time in a mean step where step times are known."""

    part: Part
    cause: str
    share_a: float
    share_b: float
    step_a_s: float | None
    step_b_s: float | None
    """For as much work as in a step of A."""


class KindChange(msgspec.Struct, frozen=True, kw_only=True):
    """A class of kernels; a side that does not run it has 0."""

    kind: str
    share_a: float
    share_b: float
    step_a_s: float | None
    """A rank's time in a step."""
    step_b_s: float | None


class RankChange(msgspec.Struct, frozen=True, kw_only=True):
    """Shares of the rank's own window; null on a side without the rank."""

    rank: int
    compute: tuple[float | None, float | None]
    comm: tuple[float | None, float | None]
    idle: tuple[float | None, float | None]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """What ``brim compare --json`` writes."""

    version: int = 1
    a: Side
    b: Side
    speed: Speed | None
    """Null where a side has no step times."""
    metrics: list[Change]
    causes: list[CauseChange]
    """Largest change first."""
    kernels: list[KindChange]
    ranks: list[RankChange]
    notes: list[str]


def counts_flops(diagnosis: Diagnosis) -> bool:
    """True when the useful part is counted in the model's FLOPs, not in busy time."""
    useful = math.fsum(e.share for e in diagnosis.account if e.part == "useful")
    mfu = diagnosis.metrics.get("mfu")
    return mfu is not None and abs(mfu - useful) < 0.01


def compare(a: Diagnosis, b: Diagnosis, *, names: tuple[str, str] = ("A", "B")) -> Comparison:
    """B against A.  Pure and repeatable: the bootstrap's seed is fixed."""
    sides = _side(a, names[0]), _side(b, names[1])
    speed = _speed(a, b, *sides)
    return Comparison(
        a=sides[0],
        b=sides[1],
        speed=speed,
        metrics=_metrics(a, b),
        causes=_causes(a, b, *sides, speed.work if speed else 1.0),
        kernels=_kernels(a, b, speed.work if speed else 1.0),
        ranks=_ranks(a, b),
        notes=_notes(a, b, *sides, speed),
    )


def worse_by(comparison: Comparison) -> float:
    """By what share B is worse; negative when it is better.

    Of the time for the same work (0.1: B takes 1.1 times as long), or, where step times are not
    known, the largest rise of a loss's share of the time.
    """
    if comparison.speed is not None:
        return 1 / comparison.speed.ratio - 1
    losses = [c for c in comparison.causes if c.part != "useful"]
    return max((c.share_b - c.share_a for c in losses), default=0.0)


def beyond_noise(speed: Speed) -> bool | None:
    """Whether the interval leaves out "no change"; None where there is no interval."""
    if speed.low is None or speed.high is None:
        return None
    return not speed.low <= 1.0 <= speed.high


def step_times(diagnosis: Diagnosis) -> list[float]:
    """Seconds of each step, the mean over ranks; empty where single steps were not recorded."""
    rows = diagnosis.details.get("steps")
    by_rank: dict[Any, list[float]] = {}
    for row in rows if isinstance(rows, list) else []:
        wall = row.get("wall_us") if isinstance(row, dict) else None
        if isinstance(wall, int | float) and math.isfinite(wall) and wall > 0:
            by_rank.setdefault(row.get("rank", 0), []).append(wall * 1e-6)
    return [math.fsum(same) / len(same) for same in zip(*by_rank.values(), strict=False)]


def _side(diagnosis: Diagnosis, name: str) -> Side:
    times = step_times(diagnosis)
    spread = _spread(np.array(times)) if times else None
    step_s = spread.mean_s if spread else diagnosis.metrics.get("step_s")
    return Side(
        name=name,
        verdict=diagnosis.verdict,
        device=diagnosis.device,
        steps=diagnosis.window.steps,
        ranks=diagnosis.window.ranks,
        step_s=step_s if step_s and math.isfinite(step_s) else None,
        spread=spread,
    )


def _spread(times: _Floats) -> Spread:
    p10, median, p90 = np.quantile(times, [0.1, 0.5, 0.9])
    return Spread(
        steps=len(times),
        median_s=float(median),
        p10_s=float(p10),
        p90_s=float(p90),
        mean_s=float(times.mean()),
    )


def _speed(a: Diagnosis, b: Diagnosis, side_a: Side, side_b: Side) -> Speed | None:
    if side_a.step_s is None or side_b.step_s is None:
        return None
    work = _work(a, b, side_a, side_b)
    ratio = side_a.step_s / side_b.step_s * work
    times_a, times_b = np.array(step_times(a)), np.array(step_times(b))
    if min(len(times_a), len(times_b)) < FEWEST_STEPS:
        return Speed(ratio=ratio, work=work)
    low, high = bootstrap(times_a, times_b)
    return Speed(ratio=ratio, low=low * work, high=high * work, work=work)


def _work(a: Diagnosis, b: Diagnosis, side_a: Side, side_b: Side) -> float:
    """Samples (else tokens) of a step of B by those of A; 1 where they are equal or not known."""
    for name, same in (("samples_per_s", _SAME_SAMPLES), ("tokens_per_s", _SAME_TOKENS)):
        of_a, of_b = _per_step(a, side_a, name), _per_step(b, side_b, name)
        if of_a and of_b:
            return 1.0 if abs(of_b / of_a - 1) <= same else of_b / of_a
    return 1.0


def _per_step(diagnosis: Diagnosis, side: Side, rate: str) -> float:
    """A rate is an average over the window, and so is the step."""
    return diagnosis.metrics.get(rate, 0.0) * (side.step_s or 0.0)


def bootstrap(a: _Floats, b: _Floats) -> tuple[float, float]:
    """95 % percentile interval of mean(a) / mean(b) (Efron 1979), steps taken as independent.

    Steps of a run are not quite independent, so slow drifts within a run are not covered; two runs
    of the same code differ by more than this interval where the machine's state differs.
    """
    random = np.random.default_rng(0)
    ratios = _means(a, random) / _means(b, random)
    low, high = np.quantile(ratios, [0.025, 0.975])
    return float(low), float(high)


def _means(times: _Floats, random: np.random.Generator) -> _Floats:
    """Means of resamples, a bounded number at a time: a long run has 10⁵ steps."""
    at_once = max(1, min(_RESAMPLES, 4_000_000 // len(times)))
    blocks = []
    for first in range(0, _RESAMPLES, at_once):
        n = min(at_once, _RESAMPLES - first)
        picked = random.integers(0, len(times), (n, len(times)))
        blocks.append(times[picked].mean(axis=1))
    return np.concatenate(blocks)


def _metrics(a: Diagnosis, b: Diagnosis) -> list[Change]:
    names = dict.fromkeys([*a.metrics, *b.metrics])
    return [Change(name=n, a=a.metrics.get(n), b=b.metrics.get(n)) for n in names]


def _slices(diagnosis: Diagnosis, *, busy_only: bool) -> dict[tuple[Part, str], float]:
    slices: dict[tuple[Part, str], float] = {}
    for entry in diagnosis.account:
        merged = busy_only and entry.part in ("useful", "busy-lost")
        key: tuple[Part, str] = ("useful", "compute") if merged else (entry.part, entry.cause)
        slices[key] = slices.get(key, 0.0) + entry.share
    return slices


def _causes(
    a: Diagnosis, b: Diagnosis, side_a: Side, side_b: Side, work: float
) -> list[CauseChange]:
    # useful FLOPs of one side cannot be set against busy time of the other
    busy_only = counts_flops(a) != counts_flops(b)
    of_a, of_b = _slices(a, busy_only=busy_only), _slices(b, busy_only=busy_only)
    changes = [
        CauseChange(
            part=key[0],
            cause=key[1],
            share_a=of_a.get(key, 0.0),
            share_b=of_b.get(key, 0.0),
            step_a_s=_times(of_a.get(key, 0.0), side_a.step_s),
            step_b_s=_times(of_b.get(key, 0.0) / work, side_b.step_s),
        )
        for key in dict.fromkeys([*of_a, *of_b])
    ]
    return sorted(changes, key=lambda c: -_size(c))


def _times(share: float, step_s: float | None) -> float | None:
    return None if step_s is None else share * step_s


def _size(change: CauseChange | KindChange) -> float:
    if change.step_a_s is None or change.step_b_s is None:
        return abs(change.share_b - change.share_a)
    return abs(change.step_b_s - change.step_a_s)


def _rows(diagnosis: Diagnosis, table: str, *fields: str) -> Iterable[dict[str, Any]]:
    """Rows of a table of details that have the fields as numbers (or text, for ``kind``)."""
    rows = diagnosis.details.get(table)
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and all(isinstance(row.get(f), int | float) for f in fields):
            yield row


def _kernels(a: Diagnosis, b: Diagnosis, work: float) -> list[KindChange]:
    of_a, of_b = (
        {str(r.get("kind", "")): r for r in _rows(d, "kernel_kinds", "share", "time_us")}
        for d in (a, b)
    )
    if not of_a or not of_b:
        return []
    changes = [
        KindChange(
            kind=kind,
            share_a=of_a.get(kind, {}).get("share", 0.0),
            share_b=of_b.get(kind, {}).get("share", 0.0),
            step_a_s=_kind_step(of_a.get(kind), a, 1.0),
            step_b_s=_kind_step(of_b.get(kind), b, work),
        )
        for kind in dict.fromkeys([*of_a, *of_b])
    ]
    return sorted(changes, key=lambda c: -_size(c))


def _kind_step(row: dict[str, Any] | None, diagnosis: Diagnosis, work: float) -> float | None:
    n = diagnosis.window.steps * diagnosis.window.ranks
    if not n:
        return None
    return float(row["time_us"]) * 1e-6 / n / work if row else 0.0


def _ranks(a: Diagnosis, b: Diagnosis) -> list[RankChange]:
    fields = ("rank", "compute", "exposed_comm", "idle")
    of_a, of_b = ({r["rank"]: r for r in _rows(d, "ranks", *fields)} for d in (a, b))

    def pair(rank: int, name: str) -> tuple[float | None, float | None]:
        return of_a.get(rank, {}).get(name), of_b.get(rank, {}).get(name)

    return [
        RankChange(
            rank=rank,
            compute=pair(rank, "compute"),
            comm=pair(rank, "exposed_comm"),
            idle=pair(rank, "idle"),
        )
        for rank in sorted({*of_a, *of_b})
        if of_a and of_b
    ]


def _notes(
    a: Diagnosis, b: Diagnosis, side_a: Side, side_b: Side, speed: Speed | None
) -> list[str]:
    """What limits the comparison."""
    notes = []
    if a.device != b.device:
        notes.append(f"the devices differ: {a.device or 'unknown'}, and {b.device or 'unknown'}")
    if a.window.ranks != b.window.ranks:
        notes.append(f"the numbers of ranks differ: {a.window.ranks} and {b.window.ranks}")
    if counts_flops(a) != counts_flops(b):
        notes.append("FLOPs were counted on one side only: busy time is compared instead")
    if speed is None:
        notes.append("step times are not known on both sides: shares of the time are compared")
        return notes
    if speed.work != 1.0:
        notes.append(
            f"a step of B does {speed.work:.3g} times the work of a step of A: "
            "B's times are given for as much work as in a step of A"
        )
    if speed.low is None:
        n_a, n_b = (s.spread.steps if s.spread else 0 for s in (side_a, side_b))
        notes.append(
            f"noise is not known: {n_a} and {n_b} single steps were recorded, "
            f"an interval needs {FEWEST_STEPS} on each side"
        )
    return notes + _profiled(a, b) + _rare_long_steps(side_a, side_b)


def _rare_long_steps(a: Side, b: Side) -> list[str]:
    """A mean holds one evaluation in 50 steps; say so where the usual step tells another story."""
    if a.spread is None or b.spread is None:
        return []
    medians, means = a.spread.median_s / b.spread.median_s, a.spread.mean_s / b.spread.mean_s
    if abs(means / medians - 1) < 0.05:
        return []
    return [
        f"means are compared ({means:.2f}×); by the median step it is {medians:.2f}×: "
        "a few steps are far from the others"
    ]


def _profiled(a: Diagnosis, b: Diagnosis) -> list[str]:
    sides = [name for name, d in (("A", a), ("B", b)) if "profiled_step_s" in d.metrics]
    if not sides:
        return []
    return [f"steps of {' and '.join(sides)} were timed under the profiler, which slows the host"]
