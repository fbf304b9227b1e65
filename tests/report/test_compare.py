"""A comparison as a person reads it."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.report import examples
from tests.report.browser import PROGRAM, Browser

from brim.diagnose.compare import Comparison, compare
from brim.record.findings import Diagnosis, Entry
from brim.report import changes
from brim.report.compare import page, render, write_html

SNAPSHOTS = Path(__file__).parent / "snapshots"


def _pair(name: str) -> Comparison:
    pairs = {
        "input": (examples.input_bound(), examples.input_cured()),
        "comm": (examples.comm_bound(), examples.comm_cured()),
        "hostile": (examples.hostile(), examples.hostile()),
        "mixed": (examples.healthy(), examples.comm_bound()),
        "untimed": (_untimed(examples.input_bound()), _untimed(examples.input_cured())),
    }
    names = (
        ("runs/before", "runs/after") if name != "hostile" else (" ".join(examples.HOSTILE),) * 2
    )
    return compare(*pairs[name], names=names)


def _untimed(diagnosis: Diagnosis) -> Diagnosis:
    return msgspec.structs.replace(diagnosis, metrics={}, details={})


def _printed(comparison: Comparison, width: int = 80, *, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    render(comparison, Console(file=file, width=width, color_system=None))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("name", ["input", "comm", "untimed"])
def test_the_comparison_is_the_recorded_one(name: str) -> None:
    """After a wanted change: delete the file, run once, read the new one, commit it."""
    printed = _printed(_pair(name))
    snapshot = SNAPSHOTS / f"compare-{name}-80.txt"
    if not snapshot.exists():
        snapshot.write_text(printed)
        pytest.fail(f"{snapshot.name} was not there and is written anew: read it")
    assert printed == snapshot.read_text()


@pytest.mark.parametrize(
    ("document", "snapshot"),
    [("compare.md", "compare-input-80.txt"), ("report.md", "input_bound-80.txt")],
)
def test_the_example_in_the_documentation_is_what_is_printed(document: str, snapshot: str) -> None:
    text = (Path(__file__).parents[2] / "docs" / document).read_text()
    printed = (SNAPSHOTS / snapshot).read_text().splitlines()
    example = next(block for block in text.split("```") if "█" in block)
    lines = [line for line in example.strip("\n").splitlines() if line.strip(" …")]
    assert len(lines) >= 10
    assert [line for line in lines if line not in printed] == []


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("name", ["input", "comm", "hostile", "mixed", "untimed"])
def test_no_line_of_a_comparison_is_wider_than_the_terminal(name: str, width: int) -> None:
    printed = _printed(_pair(name), width)
    assert max(cell_len(line) for line in printed.splitlines()) <= width
    assert "\x1b" not in printed


def test_a_comparison_is_ascii_in_an_ascii_terminal() -> None:
    printed = _printed(_pair("comm"), encoding="ascii")
    assert printed.isascii()
    assert "?" not in printed


def test_the_verdict_says_faster_slower_or_noise() -> None:
    a, b = examples.input_bound(), examples.input_cured()
    assert changes.verdict(compare(a, b)).startswith("B is faster: 103 ms a step instead of 205 ms")
    assert changes.verdict(compare(b, a)).startswith("B is slower: 205 ms a step instead of 103 ms")
    assert changes.verdict(compare(a, a)).startswith("No difference beyond noise: ")
    assert "noise not known" in changes.verdict(_pair("comm"))
    assert changes.verdict(_pair("untimed")) == (
        "The largest change: input.workers went from 46.3 % to 2.4 % of the time."
    )


def test_bars_of_steps_have_the_lengths_of_the_steps() -> None:
    lines = _printed(_pair("input")).splitlines()
    bars = [line for line in lines if line.startswith(("A █", "B █"))]
    assert len(bars[0]) == 80
    assert len(bars[1]) - 2 == pytest.approx(78 * 103 / 205, abs=1)


def test_more_time_is_worse_and_less_is_better() -> None:
    rows = {row.name: row for row in changes.causes(_pair("input"))}
    assert (rows["input.workers"].change, rows["input.workers"].direction) == ("−92.5 ms", "better")
    assert rows["transfer.pageable"].direction == "worse"
    figures = {row.name: row for row in changes.metrics(_pair("input"))}
    assert figures["mean step"].direction == figures["samples/s"].direction == "better"
    assert (figures["GPU-Util"].change, figures["GPU-Util"].direction) == ("same", "")


def test_a_cause_of_two_parts_is_told_apart() -> None:
    account = [
        Entry(part="useful", cause="compute", share=0.5),
        Entry(part="idle", cause="transfer.pageable", share=0.3),
        Entry(part="busy-not-computing", cause="transfer.pageable", share=0.2),
    ]
    run = msgspec.structs.replace(examples.input_bound(), account=account)
    names = {row.name for row in changes.causes(compare(run, run))}
    assert names == {
        "the device computes",
        "transfer.pageable (idle)",
        "transfer.pageable (busy, not computing)",
    }


def test_a_figure_of_one_side_only_is_a_dash_and_no_change() -> None:
    rows = {row.name: row for row in changes.metrics(_pair("mixed"))}
    assert rows["MFU"].cells == ["50.2 %", "–"]
    assert rows["MFU"].change == ""


def test_of_200_ranks_the_16_that_changed_most_are_shown_in_order() -> None:
    before, after = examples.comm_bound(), examples.comm_cured()
    row = before.details["ranks"][0]
    before.details["ranks"] = [{**row, "rank": r, "compute": 0.5} for r in range(200)]
    after.details["ranks"] = [
        {**row, "rank": r, "compute": 0.5 + (0.1 if r % 20 == 0 else 0.0)} for r in range(200)
    ]
    names = [row.name for row in changes.ranks(compare(before, after))]
    assert len(names) == 16
    assert {f"rank {r}" for r in range(0, 200, 20)} <= set(names)


def test_the_page_has_no_hostile_element() -> None:
    text = page(_pair("hostile"))
    assert "<img" not in text
    assert text.count("<script") == 1
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in text


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")
@pytest.mark.slow
def test_in_a_browser_the_comparison_loads_without_complaint(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        for name in ("input", "comm", "hostile"):
            path = tmp_path / f"{name}.html"
            write_html(_pair(name), path)
            for width in (1200, 390):
                browser.view(width, 800)
                browser.open(path)
                wide = browser.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} scrolls sideways at {width}"
        assert browser.complaints == []
