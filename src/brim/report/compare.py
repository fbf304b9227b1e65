"""Two runs side by side, in a terminal and as a page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from brim.diagnose.compare import CauseChange, Comparison
from brim.files import write_atomic
from brim.report import changes, views, words
from brim.report.html import render as render_page
from brim.report.palette import ACCENTS, ASCII_GLYPHS, GLYPHS, accent_of, cells
from brim.report.paper import Paper
from brim.units import duration, percent

_MOST_KINDS = 8
_STYLES = {"better": "green", "worse": "red", "": "dim"}


def render(comparison: Comparison, console: Console) -> None:
    """Print a comparison."""
    paper = Paper(console)
    paper.line(paper.text(changes.verdict(comparison), "bold"))
    paper.blank()
    for name, side in changes.sides(comparison):
        paper.line(paper.text(side), mark=paper.text(name, "bold"))
    _bars(paper, comparison)
    _section(paper, ("", "A", "B", "change"), changes.metrics(comparison))
    timed = comparison.speed is not None
    what = "mean step, by cause" if timed else "share of the time, by cause"
    _section(paper, (what, "A", "", "B", "", "change"), changes.causes(comparison))
    kinds = changes.kernels(comparison)[:_MOST_KINDS]
    _section(paper, ("kernels", "A", "", "B", "", "change"), kinds)
    heads = ("", "compute A", "B", "comm A", "B", "idle A", "B", "compute")
    _section(paper, heads, changes.ranks(comparison))
    if comparison.notes:
        paper.blank()
    for note in comparison.notes:
        paper.line(paper.text(note, "dim"), mark=paper.text("note:", "dim"))


def _section(paper: Paper, header: Sequence[str], rows: list[changes.Row]) -> None:
    """A table; columns that are empty in every row are left out."""
    if not rows:
        return
    table = [[row.name, *row.cells, row.change] for row in rows]
    kept = [i for i in range(len(header)) if i == 0 or any(line[i] for line in table)]
    paper.blank()
    paper.table(
        [header[i] or _header_of_shares(header, i, kept) for i in kept],
        [
            [_cell(paper, line[i], i, len(header), row.direction) for i in kept]
            for row, line in zip(rows, table, strict=True)
        ],
    )


def _header_of_shares(header: Sequence[str], i: int, kept: list[int]) -> str:
    """Where the column of times before a share is left out, the share carries the side's name."""
    return header[i - 1] if i > 0 and i - 1 not in kept else ""


def _cell(paper: Paper, text: str, i: int, n: int, direction: str) -> Text:
    style = _STYLES[direction] if i == n - 1 else ""
    return paper.text(text, style)


def _bars(paper: Paper, comparison: Comparison) -> None:
    """The accounts of A and B under each other; as long as their steps where these are known."""
    paper.blank()
    shown = changes.by_part(comparison.causes)
    glyphs = GLYPHS if paper.unicode else ASCII_GLYPHS
    lengths = _lengths(shown)
    longest = max(sum(lengths[0]), sum(lengths[1])) or 1.0
    room = paper.width - 2
    for name, side in zip("AB", lengths, strict=True):
        bar = Text(end="")
        whole = round(sum(side) / longest * room)
        for i, n in enumerate(cells(side, whole)):
            style = ACCENTS[accent_of(shown[i].cause, shown[i].part)].style
            bar.append(glyphs[i % len(glyphs)] * n, style=style)
        paper.line(bar, mark=paper.text(name, "bold"))
    legend = []
    for i, change in enumerate(shown):
        mark = Text(
            glyphs[i % len(glyphs)], style=ACCENTS[accent_of(change.cause, change.part)].style
        )
        legend.append(Text(" ").join((mark, paper.text(_name(change, shown)))))
    paper.flow(legend, between="  ", indent=2)


def _name(change: CauseChange, among: list[CauseChange]) -> str:
    short = {"useful": "compute", "unknown": "unknown"}
    return short.get(change.part) or changes.slice_name(change, among)


def _lengths(shown: list[CauseChange]) -> tuple[list[float], list[float]]:
    """Seconds in a step, or shares where step times are not known."""
    times = [(c.step_a_s, c.step_b_s) for c in shown]
    if all(a is not None and b is not None for a, b in times):
        return [a or 0.0 for a, _ in times], [b or 0.0 for _, b in times]
    return [c.share_a for c in shown], [c.share_b for c in shown]


def write_html(comparison: Comparison, path: Path) -> None:
    """Write the page; the file is replaced at once or not at all."""
    write_atomic(path, page(comparison).encode())


def page(comparison: Comparison) -> str:
    shown = changes.by_part(comparison.causes)
    lengths = _lengths(shown)
    longest = max(sum(lengths[0]), sum(lengths[1])) or 1.0
    timed = comparison.speed is not None
    bars = [_bar(shown, side, longest, timed) for side in lengths]
    return render_page(
        "compare.html",
        title=changes.verdict(comparison),
        verdict=changes.verdict(comparison),
        sides=changes.sides(comparison),
        bars=[
            (name, bar, duration(math.fsum(side)) if timed else "")
            for name, bar, side in zip("AB", bars, lengths, strict=True)
        ],
        legend=views.legend(bars),
        metrics=changes.metrics(comparison),
        causes=[(accent_of(row.cause), row) for row in changes.causes(comparison)],
        kernels=changes.kernels(comparison),
        ranks=changes.ranks(comparison),
        timed=timed,
        left_out_ranks=max(0, len(comparison.ranks) - changes.MAX_RANKS),
        notes=[words.clean(note) for note in comparison.notes],
    )


def _bar(
    shown: list[CauseChange], side: list[float], longest: float, timed: bool
) -> list[views.Bar]:
    bars, start = [], 0.0
    for change, value in zip(shown, side, strict=True):
        title = f"{_name(change, shown)}: {duration(value) if timed else percent(value)}"
        bars.append(views.bar(start, value / longest, accent_of(change.cause, change.part), title))
        start += value / longest
    return bars
