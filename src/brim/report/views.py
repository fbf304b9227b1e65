"""What the page shows, as plain rows of text and percentages; the template only places them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from brim.diagnose.causes import CAUSES, COMPUTE
from brim.diagnose.compare import counts_flops
from brim.diagnose.trace.tables import CollRow, KernelRow, KindRow, ModuleRow, RankRow
from brim.record.findings import Diagnosis, Entry, Finding
from brim.report import words
from brim.report.palette import ACCENTS, USEFUL, accent_of, in_order
from brim.report.tables import Step
from brim.units import duration, percent, rate, size

_WIDE_ENOUGH = 20
_REST = "the rest"
_MAX_COLUMNS = 160
"""Columns of the step plot; more are averaged in groups."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """A piece of a bar, in percent of its width."""

    x: str
    width: str
    accent: str
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Fall:
    """A row of the waterfall."""

    name: str
    part: str
    share: str
    bar: Bar
    edge: str
    """Where the next row begins, in percent: a thin line leads there."""
    caused: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Cure:
    """A remedy; the first setting is the job's own framework's."""

    summary: str
    price: str
    settings: list[tuple[str, str, str]]
    """(framework's id, its name, the setting)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Card:
    """A finding."""

    cause: str
    accent: str
    title: str
    share: str
    gain: str
    confidence: str
    evidence: list[str]
    place: str
    cures: list[Cure]


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A row of a table with a bar."""

    name: str
    cells: list[str]
    note: str = ""
    bars: list[Bar] = field(default_factory=list)
    rated: bool = False
    """Of a kernel: whether what it achieved is known."""
    late: Bar | None = None
    """Of a rank: how long others waited for it, against the rank that was waited for longest."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """A step in the plot: (y, height, accent) from the top, of 100."""

    pieces: list[tuple[str, str, str]]
    title: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepPlot:
    columns: list[Column]
    width: str
    """In percent; a few steps are not stretched into walls."""
    top: str
    median: str
    median_y: str
    spread: str
    caption: str
    split: bool
    """Whether the columns are divided by what the device did."""


def _at(value: float) -> str:
    return f"{max(0.0, value):.3f}"


def bar(start: float, share: float, accent: str, title: str) -> Bar:
    """A piece from ``start`` on, both as shares of the bar's width."""
    return Bar(x=_at(start * 100), width=_at(share * 100), accent=accent, title=title)


def waterfall(diagnosis: Diagnosis) -> list[Fall]:
    """From all of the time, loss by loss, down to what is useful; the largest loss first."""
    flops = counts_flops(diagnosis)
    whole = "all that the device could compute" if flops else "the measured time"
    total = bar(0, 1, "total", whole)
    rows = [Fall(name=whole, part="", share="100 %", bar=total, edge="100", caused=False)]
    present = [e for e in in_order(diagnosis.account) if e.share >= words.SEEN]
    lost = sorted((e for e in present if e.part != "useful"), key=lambda e: -e.share)
    left = 1.0
    for entry in [*lost, *(e for e in present if e.part == "useful")]:
        left -= entry.share
        rows.append(_fall(entry, left, flops))
    return rows


def _fall(entry: Entry, left: float, flops: bool) -> Fall:
    useful = entry.part == "useful"
    name = words.slice_name(entry, flops=flops)
    title = f"{name}: {percent(entry.share)}"
    start = 0.0 if useful else left
    return Fall(
        name=name,
        part=words.part(entry, flops=flops),
        share=percent(entry.share),
        bar=bar(start, entry.share, accent_of(entry.cause, entry.part), title),
        edge=_at(start * 100),
        caused=not useful and entry.cause in CAUSES,
    )


def card(finding: Finding, frameworks: list[str]) -> Card:
    meaning = words.meaning(finding.cause)
    return Card(
        cause=words.clean(finding.cause),
        accent=accent_of(finding.cause),
        title=words.sentence(meaning or finding.cause),
        share=percent(finding.share),
        gain=words.gain(finding.gain),
        confidence=finding.confidence,
        evidence=[words.clean(seen) for seen in finding.evidence],
        place=words.place(finding.where) if finding.where else "",
        cures=[
            Cure(
                summary=words.sentence(remedy.summary),
                price=words.price(remedy),
                settings=[
                    (words.clean(name), words.framework(name), words.clean(text, keep_lines=True))
                    for name, text in words.ordered_settings(remedy, frameworks)
                ],
            )
            for remedy in finding.remedies
        ],
    )


def frameworks(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Frameworks that some remedy knows, the job's own first."""
    known = {n for f in diagnosis.findings for r in f.remedies for n in r.settings}
    wanted = [*diagnosis.frameworks, *words.FRAMEWORKS, *sorted(known)]
    return [(words.clean(n), words.framework(n)) for n in dict.fromkeys(wanted) if n in known]


def kernels(rows: list[KernelRow]) -> list[Line]:
    longest = max((row.share for row in rows), default=0.0)
    return [_kernel(row, longest) for row in rows]


def _kernel(row: KernelRow, longest_share: float) -> Line:
    """Name; kind, dtype, calls, mean, share, achieved, attainable; a bar of its share."""
    if row.flops_per_s is not None:
        achieved = rate(row.flops_per_s, "FLOP")
    else:
        achieved = rate(row.bytes_per_s, "B") if row.bytes_per_s is not None else "–"
    reached = "–" if row.attainable is None else f"{row.attainable:.0%}".replace("%", " %")
    return Line(
        name=words.clean(row.name),
        note=words.clean(row.op),
        rated=achieved != "–" or row.attainable is not None,
        cells=[
            words.clean(row.kind),
            words.clean(row.dtype) or "–",
            f"{row.calls:,}",
            duration(row.time_us / max(row.calls, 1) * 1e-6),
            percent(row.share),
            achieved,
            reached,
            row.bound,
        ],
        bars=[
            bar(0, row.share / longest_share if longest_share else 0, _kind_accent(row.kind), ""),
            bar(0, min(row.attainable or 0.0, 1.0), USEFUL, reached),
        ],
    )


def kinds(rows: list[KindRow]) -> list[tuple[str, str]]:
    """(class of kernels, share of the time), without what takes less than 0.1 %."""
    return [(words.clean(row.kind), percent(row.share)) for row in rows if row.share >= 0.001]


def _kind_accent(kind: str) -> str:
    return {"comm": "comm", "copy": "transfer"}.get(kind, USEFUL)


def modules(rows: list[ModuleRow]) -> list[Line]:
    longest = max((row.share for row in rows), default=0.0)
    return [_module(row, longest) for row in rows]


def _module(row: ModuleRow, longest_share: float) -> Line:
    kinds = sorted(row.kinds.items(), key=lambda item: -item[1])[:3]
    total = math.fsum(row.kinds.values()) or 1.0
    made_of = ", ".join(f"{words.clean(k)} {t / total:.0%}".replace("%", " %") for k, t in kinds)
    return Line(
        name=words.clean(row.module),
        note=made_of,
        cells=[percent(row.share), duration(row.device_us * 1e-6), f"{row.kernels:,}"],
        bars=[bar(0, row.share / longest_share if longest_share else 0, USEFUL, "")],
    )


def _known(value: float | None, factor: float = 1e-6) -> str:
    return "–" if value is None else duration(value * factor) if value else "0"


def ranks(rows: list[RankRow]) -> list[Line]:
    """Rank; idle, waited, made others wait, came last, held up by; its time as a stacked bar."""
    longest = max((row.late_us or 0.0 for row in rows), default=0.0)
    return [_rank(row, longest) for row in rows]


def _rank(row: RankRow, longest_us: float) -> Line:
    shares = {COMPUTE: row.compute, "comm": row.exposed_comm, "transfer": row.exposed_copy}
    return Line(
        name=str(row.rank),
        note=words.clean(row.file),
        cells=[
            percent(row.idle),
            _known(row.comm_wait_us),
            _known(row.late_us),
            "–" if row.late_calls is None else f"{row.late_calls:,}",
            words.clean(row.late_cause) or "–",
        ],
        bars=stack(shares | row.idle_by_cause),
        late=bar(0, (row.late_us or 0.0) / longest_us if longest_us else 0.0, "comm", ""),
    )


def stack(shares: Mapping[str, float]) -> list[Bar]:
    """A stacked bar of shares of one."""
    bars, start = [], 0.0
    for cause, share in shares.items():
        if share > 0:
            name = {"comm": "exposed communication", "transfer": "exposed copies"}.get(cause, cause)
            title = f"{words.clean(name)} {percent(share)}"
            bars.append(bar(start, share, accent_of(cause), title))
            start += share
    return bars


def collective(row: CollRow) -> Line:
    n_bytes, speed = row.bytes_per_step, row.bus_bytes_per_s
    return Line(
        name=words.clean(row.name),
        cells=[
            words.number(row.calls_per_step),
            "–" if n_bytes is None else size(n_bytes),
            duration(row.time_us * 1e-6),
            duration(row.exposed_us * 1e-6),
            _known(row.spread_us),
            "–" if speed is None else rate(speed, "B"),
        ],
    )


def legend(stacks: Iterable[Iterable[Bar]]) -> list[tuple[str, str]]:
    """(accent, label) of what is drawn."""
    drawn = {bar.accent for bars in stacks for bar in bars}
    return [(name, accent.label) for name, accent in ACCENTS.items() if name in drawn]


def step_plot(steps: list[Step]) -> StepPlot | None:
    """Step times over the run, the mean of all ranks; fewer than 2 steps make no plot."""
    mean = _mean_over_ranks(steps)
    if len(mean) < 2:
        return None
    walls = sorted(s.wall_us for s in mean)
    median = statistics.median(walls)
    low, high = walls[len(walls) // 10], walls[-1 - len(walls) // 10]
    group = -(-len(mean) // _MAX_COLUMNS)
    shown = [_mean(mean[i : i + group]) for i in range(0, len(mean), group)]
    top = max(s.wall_us for s in shown) or 1.0
    n_ranks = len({s.rank for s in steps})
    caption = f"{len(mean)} steps" + (f", mean of {n_ranks} ranks" if n_ranks > 1 else "")
    return StepPlot(
        columns=[_column(s, top) for s in shown],
        width=_at(100 * min(1.0, len(shown) / _WIDE_ENOUGH)),
        top=duration(top * 1e-6),
        median=duration(median * 1e-6),
        median_y=_at(100 - median / top * 100),
        spread=f"{duration(low * 1e-6)} to {duration(high * 1e-6)}",
        caption=caption + (f"; each column is {group} steps" if group > 1 else ""),
        split=any(_pieces(s) for s in shown),
    )


def _mean_over_ranks(steps: list[Step]) -> list[Step]:
    by_rank: dict[int, list[Step]] = {}
    for step in steps:
        by_rank.setdefault(step.rank, []).append(step)
    return [_mean(list(same)) for same in zip(*by_rank.values(), strict=False)]


def _mean(steps: list[Step]) -> Step:
    causes = dict.fromkeys(cause for s in steps for cause in s.idle_by_cause)

    def of(values: list[float | None]) -> float | None:
        known = [v for v in values if v is not None]
        return math.fsum(known) / len(known) if known else None

    return Step(
        rank=steps[0].rank,
        name=steps[0].name,
        wall_us=math.fsum(s.wall_us for s in steps) / len(steps),
        compute_us=of([s.compute_us for s in steps]),
        exposed_comm_us=of([s.exposed_comm_us for s in steps]),
        exposed_copy_us=of([s.exposed_copy_us for s in steps]),
        idle_us=of([s.idle_us for s in steps]),
        input_us=of([s.input_us for s in steps]),
        idle_by_cause={
            c: math.fsum(s.idle_by_cause.get(c, 0.0) for s in steps) / len(steps) for c in causes
        },
    )


def step_legend(steps: list[Step]) -> list[tuple[str, str]]:
    """(accent, label) of what the plot draws."""
    drawn = {cause for step in steps for cause in _pieces(step)}
    rest = [("total", "all but input")] if _REST in drawn else []
    accents = {accent_of(cause) for cause in drawn - {_REST}}
    return rest + [(name, accent.label) for name, accent in ACCENTS.items() if name in accents]


def _pieces(step: Step) -> dict[str, float]:
    """What the device did in a step, µs; empty where only its length is known."""
    parts = {
        COMPUTE: step.compute_us,
        "comm": step.exposed_comm_us,
        "transfer": step.exposed_copy_us,
        **step.idle_by_cause,
    }
    known = {cause: us for cause, us in parts.items() if us}
    if known or not step.input_us:
        return known
    return {_REST: max(0.0, step.wall_us - step.input_us), "input": step.input_us}


def _column(step: Step, top: float) -> Column:
    known = _pieces(step) or {_REST: step.wall_us}
    pieces, below = [], 0.0
    for cause, us in known.items():
        height = us / top * 100
        below += height
        accent = "total" if cause == _REST else accent_of(cause)
        pieces.append((_at(100 - below), _at(height), accent))
    name = words.clean(step.name) or "step"
    return Column(pieces=pieces, title=f"{name}: {duration(step.wall_us * 1e-6)}")
