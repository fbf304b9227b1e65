"""A comparison in words and rows, for the terminal and the page alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Literal

from brim.diagnose.compare import (
    FEWEST_STEPS,
    CauseChange,
    Change,
    Comparison,
    KindChange,
    RankChange,
    Side,
    beyond_noise,
)
from brim.record.findings import Entry
from brim.report import words
from brim.report.palette import PARTS
from brim.units import duration, percent

Direction = Literal["better", "worse", ""]

_HIGHER_IS_BETTER: Final = {"samples_per_s", "images_per_s", "tokens_per_s", "mfu"}
_STEPS: Final = {"step_s", "mean_step_s", "median_step_s", "profiled_step_s"}
_LOWER_IS_BETTER: Final = _STEPS | {"pad_share", "input_wait"}
_SHOWN: Final = 0.001
"""Slices below this share of the time, and changes below this share of a slice, are nothing."""
_SAME: Final = "same"
MAX_RANKS: Final = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """A figure on both sides."""

    name: str
    cells: list[str]
    change: str
    direction: Direction
    cause: str = ""
    """Set where the row is a slice of the account."""


def verdict(comparison: Comparison) -> str:
    """One sentence: how much faster or slower, and whether that is more than noise."""
    speed, a, b = comparison.speed, comparison.a, comparison.b
    if speed is None or a.step_s is None or b.step_s is None:
        return _by_shares(comparison)
    step_b = b.step_s / speed.work
    took = f"{duration(step_b)} a step instead of {duration(a.step_s)}"
    took += "" if speed.work == 1.0 else " for the same work"
    if speed.low is None or speed.high is None:
        interval = "noise not known"
    else:
        interval = f"95 % interval {speed.low:.2f}–{speed.high:.2f}×"
    if beyond_noise(speed) is False:
        return f"No difference beyond noise: {took}, {speed.ratio:.2f}× as fast ({interval})."
    what = "faster" if speed.ratio >= 1 else "slower"
    return f"B is {what}: {took}, {speed.ratio:.2f}× as fast ({interval})."


def _by_shares(comparison: Comparison) -> str:
    lost = [c for c in comparison.causes if c.part != "useful"]
    if not lost:
        return "Nothing is lost on either side."
    most = max(lost, key=lambda c: abs(c.share_b - c.share_a))
    shares = f"{percent(most.share_a)} to {percent(most.share_b)} of the time"
    return f"The largest change: {words.clean(most.cause)} went from {shares}."


def sides(comparison: Comparison) -> list[tuple[str, str]]:
    """``("A", "runs/before · 20 steps, 10th to 90th percentile 201 to 210 ms")``."""
    return [("A", _side(comparison.a)), ("B", _side(comparison.b))]


def _side(side: Side) -> str:
    said = words.clean(side.name)
    if side.spread is None:
        return said
    said += f" · {words.count(side.spread.steps, 'step')}"
    if side.spread.steps < FEWEST_STEPS:
        return said
    return (
        f"{said}, four in five take {duration(side.spread.p10_s)} to {duration(side.spread.p90_s)}"
    )


def metrics(comparison: Comparison) -> list[Row]:
    """The well-known figures that a side has."""
    a, b = comparison.a, comparison.b
    steps = [Change(name="step_s", a=a.step_s, b=b.step_s)]
    if a.spread and b.spread:
        steps = [
            Change(name="mean_step_s", a=a.spread.mean_s, b=b.spread.mean_s),
            Change(name="median_step_s", a=a.spread.median_s, b=b.spread.median_s),
        ]
    given = {change.name: change for change in comparison.metrics}
    others = [given[n] for n in words.METRICS if n in given and n not in _STEPS]
    return [_metric(c) for c in (*steps, *others) if c.a is not None or c.b is not None]


def _metric(change: Change) -> Row:
    label = words.figure(change.name, 0.0)[0]
    values = [
        "–" if v is None or not math.isfinite(v) else words.figure(change.name, v)[1]
        for v in (change.a, change.b)
    ]
    if "–" in values or not change.a or change.b is None:
        return Row(name=label, cells=values, change="", direction="")
    relative = change.b / change.a - 1
    points = change.b - change.a
    said = _points(points) if words.METRICS[change.name][1] == "share" else _signed(relative)
    return Row(name=label, cells=values, change=said, direction=_good(change.name, relative))


def _good(name: str, relative: float) -> Direction:
    if abs(relative) < 0.0005 or name not in _HIGHER_IS_BETTER | _LOWER_IS_BETTER:
        return ""
    return "better" if (relative > 0) == (name in _HIGHER_IS_BETTER) else "worse"


def _signed(share: float) -> str:
    """``0.21`` → ``+21.0 %``."""
    if abs(share) < 0.0005:
        return _SAME
    return f"{'−' if share < 0 else '+'}{percent(abs(share))}"


def _points(difference: float) -> str:
    """A difference of two shares: ``0.1`` → ``+10.0 points``."""
    if abs(difference) < 0.0005:
        return _SAME
    return f"{'−' if difference < 0 else '+'}{abs(difference) * 100:.1f} points"


def causes(comparison: Comparison, *, flops: bool = False) -> list[Row]:
    """By cause: time in a step and share of the time, largest change first."""
    rows = []
    for change in _shown(comparison.causes):
        name = slice_name(change, comparison.causes, flops=flops)
        rows.append(_times_and_shares(name, change, change.part == "useful"))
    return rows


def _shown(changes: list[CauseChange]) -> list[CauseChange]:
    return [c for c in changes if max(c.share_a, c.share_b) >= _SHOWN]


def slice_name(change: CauseChange, among: list[CauseChange], *, flops: bool = False) -> str:
    """The cause, with its part where two parts have it: copies both delay and keep busy."""
    entry = Entry(part=change.part, cause=change.cause, share=change.share_a)
    name = words.slice_name(entry, flops=flops)
    twice = sum(c.cause == change.cause for c in _shown(among)) > 1
    own = name == words.clean(change.cause)
    return f"{name} ({PARTS[change.part]})" if twice and own else name


def kernels(comparison: Comparison) -> list[Row]:
    shown = [c for c in comparison.kernels if max(c.share_a, c.share_b) >= _SHOWN]
    return [_times_and_shares(words.clean(c.kind), c, False) for c in shown]


def _times_and_shares(name: str, c: CauseChange | KindChange, useful: bool) -> Row:
    cause = c.cause if isinstance(c, CauseChange) else ""
    shares = percent(c.share_a), percent(c.share_b)
    if c.step_a_s is None or c.step_b_s is None:
        change = _points(c.share_b - c.share_a)
        better = (c.share_b > c.share_a) == useful
        cells = ["", shares[0], "", shares[1]]
    else:
        change = _longer(c.step_a_s, c.step_b_s)
        better = c.step_b_s < c.step_a_s
        cells = [_time(c.step_a_s), shares[0], _time(c.step_b_s), shares[1]]
    direction: Direction = "" if change == _SAME else "better" if better else "worse"
    return Row(name=name, cells=cells, change=change, direction=direction, cause=cause)


def _time(seconds: float) -> str:
    return duration(seconds) if seconds else "0"


def _longer(a_s: float, b_s: float) -> str:
    if abs(b_s - a_s) < _SHOWN * max(a_s, b_s):
        return _SAME
    return f"{'−' if b_s < a_s else '+'}{duration(abs(b_s - a_s))}"


def ranks(comparison: Comparison) -> list[Row]:
    """Compute, communication and idle of each rank; of many, those that changed most."""

    def changed(rank: RankChange) -> float:
        a, b = rank.compute
        return -abs(b - a) if a is not None and b is not None else -1.0

    if len(comparison.ranks) < 2:
        return []  # a single rank's time is the account
    most = sorted(comparison.ranks, key=changed)[:MAX_RANKS]
    return [_rank(rank) for rank in sorted(most, key=lambda r: r.rank)]


def _rank(rank: RankChange) -> Row:
    pairs = (rank.compute, rank.comm, rank.idle)
    cells = ["–" if v is None else percent(v) for pair in pairs for v in pair]
    a, b = rank.compute
    if a is None or b is None:
        return Row(name=f"rank {rank.rank}", cells=cells, change="", direction="")
    change = _points(b - a)
    direction: Direction = "" if change == _SAME else "better" if b > a else "worse"
    return Row(name=f"rank {rank.rank}", cells=cells, change=change, direction=direction)


def by_part(changes: list[CauseChange]) -> list[CauseChange]:
    """In the order of an account, for bars that are compared piece by piece."""
    order = {part: position for position, part in enumerate(PARTS)}
    return sorted(
        _shown(changes), key=lambda c: (order[c.part], -max(c.share_a, c.share_b), c.cause)
    )
