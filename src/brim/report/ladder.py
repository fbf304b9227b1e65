"""The result of a search, in a terminal and as a page."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

from brim.files import write_atomic
from brim.record.ladder import Ladder
from brim.report import ladder_rows as rows
from brim.report import views, words
from brim.report.html import render as render_page
from brim.report.palette import ACCENTS, ASCII_GLYPHS, GLYPHS, USEFUL, accent_of, cells
from brim.report.paper import Paper
from brim.units import duration

_WAIT: Final = "input"


def render(ladder: Ladder, console: Console) -> None:
    """Print a ladder."""
    paper = Paper(console)
    paper.line(paper.text(rows.verdict(ladder), "bold"))
    paper.blank()
    _picture(paper, ladder)
    _table(paper, ladder)
    for title, entries in _sections(ladder):
        paper.blank()
        paper.line(paper.text(title, "bold"))
        for name, text in entries:
            paper.line(paper.text(name, "cyan"), indent=2)
            for line in text.split("\n"):
                paper.line(paper.text(line), indent=4)
    paper.blank()
    for note in rows.notes(ladder):
        paper.line(paper.text(note, "dim"), mark=paper.text("note:", "dim"))


def _sections(ladder: Ladder) -> list[tuple[str, list[tuple[str, str]]]]:
    """What is neither picture nor figures: title, and (name, text) of each entry."""
    every = (
        ("kept", rows.kept(ladder)),
        ("tried and undone", [rows.undone(r) for r in ladder.rejected]),
        ("the change to make", rows.change(ladder)),
        ("what remains", rows.remaining(ladder)),
    )
    return [(title, entries) for title, entries in every if entries]


def _picture(paper: Paper, ladder: Ladder) -> None:
    """A bar for each rung's step, as long as it takes; waiting for the loader stands out."""
    drawn = [row for row in rows.rows(ladder) if row.step_s is not None]
    if not ladder.rungs or not drawn:
        return
    longest = max(row.step_s or 0.0 for row in drawn)
    glyphs = GLYPHS if paper.unicode else ASCII_GLYPHS
    for number, row in enumerate(drawn):
        step = row.step_s or 0.0
        whole = max(1, round(step / longest * (paper.width - 14)))
        bar = Text(end="")
        parts = cells([step - row.wait_s, row.wait_s], whole)
        for n, glyph, accent in zip(parts, glyphs, (USEFUL, _WAIT), strict=False):
            bar.append(glyph * n, style=ACCENTS[accent].style)
        mark = f"{number:>2}" if number else " 0"
        paper.line(bar, paper.text(f" {duration(step)}", "dim"), mark=paper.text(mark, "dim"))
    legend = [
        Text(glyph, style=ACCENTS[accent].style) + paper.text(f" {label}")
        for glyph, accent, label in zip(
            glyphs, (USEFUL, _WAIT), ("step", "of it, waiting for the loader"), strict=False
        )
    ]
    paper.flow(legend, between="  ", indent=3)
    paper.blank()


def _table(paper: Paper, ladder: Ladder) -> None:
    names = rows.columns(ladder)
    figures = rows.rows(ladder)
    more = ["faster", "99 %", "in all"] if ladder.rungs else []
    lines = []
    for number, row in enumerate(figures):
        name = paper.text(f"{number}  {row.name}")
        tail = [row.faster, row.interval, row.in_all] if ladder.rungs else []
        lines.append([name, *(paper.text(text) for text in [*row.cells, *tail])])
    paper.table(["", *rows.heads(names), *more], lines)


def write_html(ladder: Ladder, path: Path) -> None:
    """Write the page; the file is replaced at once or not at all."""
    write_atomic(path, page(ladder).encode())


def page(ladder: Ladder) -> str:
    figures = rows.rows(ladder)
    longest = max((row.step_s or 0.0 for row in figures), default=0.0)
    bars = [_bar(row, longest) for row in figures]
    names = rows.columns(ladder)
    return render_page(
        "ladder.html",
        title=rows.verdict(ladder),
        verdict=rows.verdict(ladder),
        command=words.clean(" ".join(ladder.command)),
        device=words.clean(ladder.device),
        rungs=list(zip(figures, bars, strict=True)),
        legend=views.legend(bars),
        heads=rows.heads(names),
        kept=[
            (words.clean(r.words), accent_of(r.cause) if r.cause else USEFUL, rows.details(r))
            for r in ladder.rungs
        ],
        undone=[rows.undone(r) for r in ladder.rejected],
        change=rows.change(ladder),
        remaining=rows.remaining(ladder),
        notes=rows.notes(ladder),
        duration=duration,
    )


def _bar(row: rows.Row, longest: float) -> list[views.Bar]:
    """The picture of one rung: computing, then waiting for the loader."""
    if not row.step_s or not longest:
        return []
    works, waits = row.step_s - row.wait_s, row.wait_s
    pieces = [views.bar(0.0, works / longest, USEFUL, f"step without waiting: {duration(works)}")]
    if waits:
        title = f"waiting for the loader: {duration(waits)}"
        pieces.append(views.bar(works / longest, waits / longest, _WAIT, title))
    return pieces
