"""The page: whole, self-contained, inert whatever the job's names say, and working in a browser."""

from __future__ import annotations

import base64
import hashlib
import html.parser
import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.report import examples
from tests.report.browser import PROGRAM, Browser

from brim.record.findings import Diagnosis
from brim.report.html import json_for_script, keep_units, page, write_html
from brim.report.palette import ACCENTS

NAMES = ("input_bound", "healthy", "comm_bound", "hostile")
needs_browser = pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")


class _Reader(html.parser.HTMLParser):
    """Elements with their attributes, and the text of each."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": []}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag in self.raw:
            self.raw[tag].append("")
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] in self.raw:
            self.raw[self._open[-1]][-1] += data
        else:
            self.texts.append(data)

    def named(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def _page(name: str) -> _Reader:
    diagnosis: Diagnosis = getattr(examples, name)()
    return _Reader(page(diagnosis))


@pytest.mark.parametrize("name", NAMES)
def test_the_page_needs_nothing_but_itself(name: str) -> None:
    read = _page(name)
    loading = {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}
    for tag, attributes in read.elements:
        for key in loading & set(attributes):
            assert (attributes[key] or "").startswith("#"), f"<{tag} {key}={attributes[key]}>"
        assert tag not in {"link", "iframe", "object", "embed", "img", "base", "form"}
    assert not re.search(r"@import|url\(", read.raw["style"][0])


@pytest.mark.parametrize("name", NAMES)
def test_the_policy_allows_the_one_script_and_the_one_style_sheet_by_hash(name: str) -> None:
    read = _page(name)
    (policy,) = [m["content"] for m in read.named("meta")
                 if m.get("http-equiv") == "Content-Security-Policy"]  # fmt: skip
    rules = dict(rule.split(" ", 1) for rule in str(policy).split("; "))

    def hashed(text: str) -> str:
        return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

    assert rules["default-src"] == "'none'"
    assert rules["base-uri"] == rules["form-action"] == "'none'"
    executable = [text for text, tag in zip(read.raw["script"], read.named("script"), strict=True)
                  if tag.get("type") != "application/json"]  # fmt: skip
    assert len(executable) == len(read.raw["style"]) == 1
    assert rules["script-src"] == hashed(executable[0])
    assert rules["style-src"] == hashed(read.raw["style"][0])


@pytest.mark.parametrize("name", NAMES)
def test_no_element_carries_a_handler_or_a_style(name: str) -> None:
    for tag, attributes in _page(name).elements:
        bad = [key for key in attributes if key.startswith("on") or key == "style"]
        assert not bad, f"<{tag} {bad}>"


def test_hostile_names_add_no_element_to_the_page() -> None:
    """The hostile page has the elements that the same page with harmless names has."""
    hostile = _page("hostile")
    assert {tag for tag, _ in hostile.elements} <= {
        tag for name in NAMES[:3] for tag, _ in _page(name).elements
    } | {"option", "select", "label"}  # fmt: skip
    text = "".join(hostile.texts)
    assert "</script><script>alert(1)</script>" in text
    assert "{{ 7 * 7 }}" in text  # not a template
    assert "49" not in text
    assert "\x1b" not in text and "\u202e" not in text


def test_data_in_a_script_tag_comes_back_as_it_went_in() -> None:
    data = {"texts": list(examples.HOSTILE), "n": [1, 2.5, None]}
    text = str(json_for_script(data))
    assert json.loads(text) == data
    assert not set("<>&\u2028\u2029") & set(text)


@given(st.recursive(st.none() | st.booleans() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_any_data_survives_the_escaping(data: Any) -> None:
    text = str(json_for_script(data))
    assert json.loads(text) == data
    assert "<" not in text


@settings(max_examples=40, deadline=None)
@given(st.text(min_size=1))
def test_any_verdict_is_text_in_the_page(verdict: str) -> None:
    from brim.report.words import verdict as worded

    diagnosis = Diagnosis(
        verdict=verdict,
        window=examples.healthy().window,
        account=examples.healthy().account,
        findings=[],
    )
    read = _Reader(page(diagnosis))
    assert keep_units(worded(diagnosis)).strip() in "".join(read.texts)
    assert len(read.named("script")) == 1


def test_a_figure_and_its_unit_stay_on_one_line() -> None:
    assert keep_units("46 % in 3 ms, 8 ranks") == "46\u00a0% in 3\u00a0ms, 8 ranks"


def test_a_page_holds_verdict_account_findings_and_how_it_was_measured() -> None:
    diagnosis = examples.input_bound()
    text = re.sub(r"\s+", " ", "".join(_page("input_bound").texts))
    assert diagnosis.verdict in text
    for finding in diagnosis.findings:
        assert finding.cause in text
        assert all(seen in text for seen in finding.evidence)
        assert all(
            s in text for r in finding.remedies for s in r.settings.values() if "\n" not in s
        )
    assert "from step 6 on" in text
    assert "0.4 % of step time" in text
    assert diagnosis.notes[0] in text


def test_a_healthy_page_says_so_with_what_remains() -> None:
    text = re.sub(r"\s+", " ", "".join(_page("healthy").texts))
    assert "Nothing to cure: no cause takes 5 % of the time." in text
    assert "compute.unfused 4.8 %" in text


def test_without_tables_no_empty_section_is_shown() -> None:
    ids = {a["id"] for a in _page("healthy").named("section")}
    assert ids == {"account", "findings", "measured"}
    ids = {a["id"] for a in _page("comm_bound").named("section")}
    assert ids == {"account", "findings", "timeline", "steps", "kernels", "modules", "ranks",
                   "measured"}  # fmt: skip


def test_columns_of_achieved_rates_are_left_out_where_no_rate_is_known() -> None:
    assert "Of attainable" in page(examples.comm_bound())
    diagnosis = examples.comm_bound()
    for row in diagnosis.details["kernels"]:
        row["flops_per_s"] = row["bytes_per_s"] = row["attainable"] = None
    text = page(diagnosis)
    assert "Of attainable" not in text
    assert "What they achieve is not known" in text


def test_a_table_of_another_shape_is_named_and_left_out() -> None:
    diagnosis = examples.healthy()
    diagnosis.details["kernels"] = [{"name": 7}]
    read = _Reader(page(diagnosis))
    assert "kernels" not in {a["id"] for a in read.named("section")}
    assert "the table kernels has another shape" in "".join(read.texts)


def test_the_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("old")
    write_html(examples.healthy(), path)
    assert path.read_text().startswith("<!doctype html>")
    assert list(tmp_path.iterdir()) == [path]


def _luminance(colour: str) -> float:
    """Relative luminance of WCAG 2.2."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize(("ground", "side"), [("#fdfdfc", "light"), ("#14171a", "dark")])
def test_every_accent_stands_out_3_to_1_from_the_ground(ground: str, side: str) -> None:
    for name, accent in ACCENTS.items():
        pair = sorted((_luminance(ground), _luminance(getattr(accent, side))))
        contrast = (pair[1] + 0.05) / (pair[0] + 0.05)
        assert contrast >= 3, f"{name} {side}: {contrast:.2f}"


@needs_browser
@pytest.mark.slow
def test_in_a_browser_the_pages_load_without_complaint_and_fetch_nothing(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        for name in NAMES:
            path = tmp_path / f"{name}.html"
            write_html(getattr(examples, name)(), path)
            browser.view(1200, 900)
            browser.open(path)
            assert browser.evaluate("getComputedStyle(document.body).margin") == "0px", "no style"
            for width in (1200, 390):
                browser.view(width, 800)
                browser.frame()
                wide = browser.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} scrolls sideways at {width}"
        assert browser.complaints == []
        assert {url.rpartition("/")[2] for url in browser.requests} == {f"{n}.html" for n in NAMES}


@needs_browser
@pytest.mark.slow
def test_in_a_browser_the_timeline_draws_zooms_moves_and_reads_out(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(examples.comm_bound(), path)
    with Browser(tmp_path / "profile") as browser:
        browser.view(1200, 900)
        browser.open(path)
        pieces = "document.querySelectorAll('#tracks rect[data-i]').length"
        assert browser.evaluate(pieces) > 8 * 3 * 24, "8 ranks, 3 steps, 24 layers"
        span = "(d => d.to - d.from)(document.getElementById('tracks').dataset)"
        whole = browser.evaluate(span)
        assert whole == pytest.approx(3 * 412_000, rel=1e-6)

        browser.evaluate("document.getElementById('timeline').scrollIntoView()")
        x, y, width = browser.evaluate(
            "(r => [r.x, r.y, r.width])(document.getElementById('tracks').getBoundingClientRect())"
        )
        # the wheel zooms around the pointer: what was under it stays under it
        under = "(px => (d => +d.from + (px - 46) / ({} - 46) * (d.to - d.from))" \
                "(document.getElementById('tracks').dataset))({})"  # fmt: skip
        pointer = width * 0.4
        before = browser.evaluate(under.format(width, pointer))
        for _ in range(4):
            browser.mouse("mouseWheel", x + pointer, y + 40, deltaX=0, deltaY=-200)
            browser.frame()
        zoomed = browser.evaluate(span)
        assert zoomed < whole / 5
        assert browser.evaluate(under.format(width, pointer)) == pytest.approx(
            before, abs=whole / width
        ), "off by a pixel or more"

        start = float(browser.evaluate("document.getElementById('tracks').dataset.from"))
        browser.mouse("mousePressed", x + 600, y + 40, button="left", clickCount=1)
        browser.mouse("mouseMoved", x + 500, y + 40, button="left", buttons=1)
        browser.mouse("mouseReleased", x + 500, y + 40, button="left", clickCount=1)
        browser.frame()
        moved = float(browser.evaluate("document.getElementById('tracks').dataset.from"))
        assert moved - start == pytest.approx(100 / (width - 46) * zoomed, rel=0.01)

        browser.mouse("mouseMoved", x + 300, y + 30)
        read = browser.evaluate("document.getElementById('readout').textContent")
        assert re.match(r"(busy: (compute|comm)|idle: host.launch) +[\d.]+ [mµ]s from", read)
        assert "rank 0" in read

        browser.evaluate("document.getElementById('tracks').focus()")
        browser.key("0")
        browser.frame()
        assert browser.evaluate(span) == pytest.approx(whole)
        browser.key("+")
        browser.frame()
        assert browser.evaluate(span) == pytest.approx(whole / 1.6)
        assert browser.complaints == []


@needs_browser
@pytest.mark.slow
def test_in_a_browser_the_framework_is_chosen_and_dark_and_paper_follow(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_html(examples.input_bound(), path)
    shown = "[...document.querySelectorAll('.cure')].map(c => [...c.querySelectorAll('.setting')]" \
            ".filter(s => s.offsetHeight).map(s => s.dataset.framework).join())"  # fmt: skip
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    with Browser(tmp_path / "profile") as browser:
        browser.view(1200, 900)
        browser.open(path)
        assert browser.evaluate(shown) == ["hf-trainer", "torch", "hf-trainer"]
        browser.evaluate(
            "(s => { s.value = 'lightning'; s.dispatchEvent(new Event('change')); })"
            "(document.getElementById('framework'))"
        )
        # a remedy that does not know Lightning shows its first wording
        assert browser.evaluate(shown) == ["lightning", "torch", "hf-trainer"]
        assert browser.evaluate(ground) == "rgb(253, 253, 252)"
        browser.view(1200, 900, dark=True)
        assert browser.evaluate(ground) == "rgb(20, 23, 26)"
        browser.call("Emulation.setEmulatedMedia", media="print")
        assert browser.evaluate(ground) == "rgb(255, 255, 255)"
        browser.pdf(tmp_path / "report.pdf")
        assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
        assert browser.complaints == []
