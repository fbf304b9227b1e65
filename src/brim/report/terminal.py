"""The verdict in a terminal: one sentence, the account as a bar, findings, what to change.

Everything is readable at 80 columns, without colour, and in an ASCII terminal.  Text from the
measured job never reaches the terminal as it is: see :func:`brim.report.words.clean`.
"""

from __future__ import annotations

from rich.console import Console
from rich.text import Text

from brim.diagnose.causes import CAUSES
from brim.diagnose.compare import counts_flops
from brim.record.findings import Diagnosis, Finding, Remedy
from brim.report import words
from brim.report.palette import ACCENTS, ASCII_GLYPHS, GLYPHS, accent_of, cells, in_order
from brim.report.paper import Paper
from brim.units import percent


def render(diagnosis: Diagnosis, console: Console, *, all_frameworks: bool = False) -> None:
    """Print a diagnosis.

    Remedies are worded for the first of ``diagnosis.frameworks`` that they know, else for plain
    PyTorch; ``all_frameworks`` prints every wording.
    """
    page = Paper(console)
    page.line(page.text(words.verdict(diagnosis), "bold"))
    page.blank()
    _account(page, diagnosis)
    _figures(page, diagnosis)
    if diagnosis.findings:
        for rank, finding in enumerate(diagnosis.findings, 1):
            _finding(page, rank, finding, diagnosis.frameworks, all_frameworks)
    else:
        _no_findings(page, diagnosis)
    _window(page, diagnosis)


def _account(page: Paper, diagnosis: Diagnosis) -> None:
    flops = counts_flops(diagnosis)
    entries = in_order([e for e in diagnosis.account if e.share >= words.SEEN])
    glyphs = GLYPHS if page.unicode else ASCII_GLYPHS
    marks = [
        Text(glyphs[i % len(glyphs)], style=ACCENTS[accent_of(e.cause, e.part)].style)
        for i, e in enumerate(entries)
    ]
    bar = Text(end="")
    for mark, n in zip(marks, cells([e.share for e in entries], page.width), strict=True):
        bar.append(mark.plain * n, style=mark.style)
    page.line(bar)
    longest = max((len(words.part(e, flops=flops)) for e in entries), default=0)
    for mark, entry in zip(marks, entries, strict=True):
        share = page.text(f"{percent(entry.share):>7}  ", "bold")
        part = page.text(f"{words.part(entry, flops=flops):<{longest}} ")
        caused = entry.cause in CAUSES
        name = page.text(words.slice_name(entry, flops=flops), "" if caused else "dim")
        page.line(name, mark=Text.assemble(mark, " ", share, part))


def _figures(page: Paper, diagnosis: Diagnosis) -> None:
    pieces = []
    for label, value in words.figures(diagnosis.metrics):
        shown, name = page.text(value), page.text(label, "dim")
        pieces.append(Text(" ").join((shown, name) if label.endswith("/s") else (name, shown)))
    if pieces:
        page.blank()
    page.flow(pieces)


def _finding(
    page: Paper, rank: int, finding: Finding, frameworks: list[str], all_frameworks: bool
) -> None:
    page.blank()
    cause = page.text(finding.cause, f"bold {ACCENTS[accent_of(finding.cause)].style}")
    headline = page.text(f"  {words.headline(finding)}")
    page.line(cause, headline, mark=page.text(f"{rank}", "bold"))
    meaning = words.meaning(finding.cause)
    if meaning:
        page.line(page.text(words.sentence(meaning) + "."), indent=2)
    for seen in finding.evidence:
        page.line(page.text(seen), mark=page.text("•", "dim"), indent=2)
    if finding.where:
        page.line(page.text(words.place(finding.where)), mark=page.text("at", "dim"), indent=2)
    for remedy in finding.remedies:
        _remedy(page, remedy, frameworks, all_frameworks)


def _remedy(page: Paper, remedy: Remedy, frameworks: list[str], all_frameworks: bool) -> None:
    summary = page.text(words.sentence(remedy.summary), "bold")
    price = page.text(f" ({words.price(remedy)})", "dim")
    page.line(summary, price, mark=page.text("→", "green"), indent=2)
    settings = words.ordered_settings(remedy, frameworks)
    for name, setting in settings if all_frameworks else settings[:1]:
        label = page.text(f"{words.framework(name)}:", "dim")
        if "\n" in setting.strip():
            page.line(label, indent=4)
            for row in setting.strip("\n").split("\n"):
                page.line(page.text(row, "cyan"), indent=6)
        else:
            page.line(page.text(setting.strip(), "cyan"), mark=label, indent=4)


def _no_findings(page: Paper, diagnosis: Diagnosis) -> None:
    page.blank()
    said, good = words.without_findings(diagnosis)
    if said != words.verdict(diagnosis):
        page.line(page.text(said, "green" if good else "yellow"))
    left = words.remains(diagnosis.account)
    if left:
        flops = counts_flops(diagnosis)
        said = ", ".join(f"{words.slice_name(e, flops=flops)} {percent(e.share)}" for e in left)
        page.line(page.text(f"What remains: {said}."))


def _window(page: Paper, diagnosis: Diagnosis) -> None:
    page.blank()
    rows = [("measured", words.window(diagnosis))]
    if diagnosis.device:
        rows.append(("device", diagnosis.device))
    if "overhead" in diagnosis.metrics:
        cost = f"{percent(diagnosis.metrics['overhead'])} of step time"
        rows.append(("cost of measuring", cost))
    rows += [("note", note) for note in diagnosis.notes]
    for label, said in rows:
        page.line(page.text(said, "dim"), mark=page.text(f"{label}:", "dim"))
