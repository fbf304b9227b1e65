"""The terminal report: what a person reads, at any width, with and without colour."""

from __future__ import annotations

import io
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from tests.report import examples

from brim.record.findings import Diagnosis, Entry, Window
from brim.report.palette import ACCENTS, ASCII_GLYPHS, GLYPHS, accent_of, cells, in_order
from brim.report.terminal import render

SNAPSHOTS = Path(__file__).parent / "snapshots"


def _printed(
    diagnosis: Diagnosis,
    width: int = 80,
    *,
    colour: bool = False,
    encoding: str = "utf-8",
    all_frameworks: bool = False,
) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    console = Console(
        file=file,
        width=width,
        force_terminal=colour,
        color_system="truecolor" if colour else None,
        no_color=not colour,
    )
    render(diagnosis, console, all_frameworks=all_frameworks)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["input_bound", "healthy", "comm_bound"])
def test_the_report_is_the_recorded_one(name: str, width: int) -> None:
    """After a wanted change: delete the file, run once, read the new one, commit it."""
    printed = _printed(getattr(examples, name)(), width)
    snapshot = SNAPSHOTS / f"{name}-{width}.txt"
    if not snapshot.exists():
        snapshot.parent.mkdir(exist_ok=True)
        snapshot.write_text(printed)
        pytest.fail(f"{snapshot.name} was not there and is written anew: read it")
    assert printed == snapshot.read_text()


@pytest.mark.parametrize("width", [24, 40, 80, 120, 200])
@pytest.mark.parametrize("name", ["input_bound", "healthy", "comm_bound", "hostile"])
def test_no_line_is_wider_than_the_terminal_or_120(name: str, width: int) -> None:
    printed = _printed(getattr(examples, name)(), width, all_frameworks=True)
    assert max(cell_len(line) for line in printed.splitlines()) <= min(width, 120)


def test_the_first_line_is_the_verdict() -> None:
    diagnosis = examples.input_bound()
    assert _printed(diagnosis, 120).splitlines()[0] == diagnosis.verdict


def test_a_diagnosis_without_a_sentence_still_begins_with_its_first_cause() -> None:
    diagnosis = Diagnosis(
        window=Window(steps=1, wall_s=1.0, ranks=1),
        account=examples.input_bound().account,
        findings=examples.input_bound().findings,
    )
    first = _printed(diagnosis, 120).splitlines()[0]
    assert first.startswith("46.3 % of the time is lost to input.workers: too few")


def test_without_colour_no_escape_sequence_is_printed() -> None:
    assert "\x1b" not in _printed(examples.hostile())


def test_NO_COLOR_is_obeyed_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    file = io.StringIO()
    render(examples.input_bound(), Console(file=file, width=80, force_terminal=True))
    colours = {f"\x1b[{n}m" for n in range(30, 38)} | {f"\x1b[{n}m" for n in range(90, 98)}
    assert not any(c in file.getvalue() for c in colours)
    assert "input.workers" in file.getvalue()


def test_colour_adds_nothing_but_colour() -> None:
    coloured = _printed(examples.input_bound(), colour=True)
    assert "\x1b[31m" in coloured
    plain = "".join(part.partition("m")[2] if n else part
                    for n, part in enumerate(coloured.split("\x1b[")))  # fmt: skip
    assert plain == _printed(examples.input_bound())


def test_hostile_names_reach_the_terminal_as_harmless_text() -> None:
    printed = _printed(examples.hostile(), 120)
    assert "[bold red]markup[/bold red] :skull:" in printed
    bad = {c for c in printed if c != "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp")}
    assert not bad


def test_an_ascii_terminal_gets_ascii() -> None:
    printed = _printed(examples.comm_bound(), encoding="ascii")
    assert "1.4-1.9x" in _printed(examples.input_bound(), encoding="ascii")
    assert printed.isascii()


def test_remedies_speak_the_first_framework_of_the_job() -> None:
    printed = _printed(examples.input_bound())
    assert "HF Trainer: TrainingArguments(dataloader_num_workers=7)" in printed
    assert "ms-swift" not in printed
    # a remedy that does not know the job's framework falls back on plain PyTorch
    assert "PyTorch: image.draft('RGB', (896, 896))" in printed


def test_all_frameworks_are_shown_on_demand_and_the_jobs_own_stays_first() -> None:
    printed = _printed(examples.input_bound(), all_frameworks=True)
    order = [printed.index(f"{name}: ") for name in ("HF Trainer", "PyTorch", "ms-swift")]
    assert order == sorted(order)


def test_a_healthy_run_is_told_so_with_what_remains() -> None:
    printed = _printed(examples.healthy(), 120)
    assert "Nothing to cure: no cause takes 5 % of the time." in printed
    assert "What remains: kernels below the device's peak 43.1 %, compute.unfused 4.8 %" in printed


@pytest.mark.parametrize(
    ("unknown", "said"),
    [
        (1.0, "Nothing can be said about where the time went."),
        (0.3, "No cause is known to take 5 % of the time, but 30.0 % of it could not be told"),
        (0.049, "Nothing to cure: no cause takes 5 % of the time."),
    ],
)
def test_what_could_not_be_told_apart_is_not_called_healthy(unknown: float, said: str) -> None:
    account = [
        Entry(part="useful", cause="compute", share=1 - unknown),
        Entry(part="unknown", cause="unknown", share=unknown),
    ]
    diagnosis = Diagnosis(window=Window(steps=0, wall_s=1.0, ranks=1), account=account, findings=[])
    printed = _printed(diagnosis, 120)
    assert said in printed.splitlines()[0], "no sentence of its own: this is the verdict"
    assert printed.count(said) == 1


def test_the_bar_fills_the_width_and_each_slice_has_its_own_character() -> None:
    lines = _printed(examples.input_bound()).splitlines()
    bar = lines[2]
    assert len(bar) == 80
    account = in_order(examples.input_bound().account)
    assert bar.count(GLYPHS[0]) == 32  # 40.2 % of 80 cells
    assert list(dict.fromkeys(bar)) == list(GLYPHS[: len(account)])


def test_glyphs_are_distinct_single_cells() -> None:
    for glyphs in (GLYPHS, ASCII_GLYPHS):
        assert len(set(glyphs)) == len(glyphs)
        assert all(cell_len(g) == 1 for g in glyphs)
    assert ASCII_GLYPHS.isascii()


def test_busy_time_is_not_called_useful_without_counted_flops() -> None:
    assert "useful" not in _printed(examples.input_bound())
    assert "useful" in _printed(examples.healthy())


def test_a_cause_of_a_later_version_is_shown_by_its_id() -> None:
    account = [
        Entry(part="useful", cause="compute", share=0.5),
        Entry(part="idle", cause="quantum.decoherence", share=0.5),
    ]
    printed = _printed(
        Diagnosis(window=Window(steps=0, wall_s=2.0, ranks=1), account=account, findings=[])
    )
    assert "quantum.decoherence" in printed
    assert accent_of("quantum.decoherence") == "unknown"


def test_a_figure_that_was_not_measured_is_absent_not_zero() -> None:
    assert "MFU" not in _printed(examples.input_bound()).split("measured:")[0]


@given(
    st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=12),
    st.integers(1, 300),
)
def test_cells_of_a_bar_sum_to_its_width_and_are_within_one_of_the_share(
    shares: list[float], width: int
) -> None:
    got = cells(shares, width)
    total = sum(shares)
    assert sum(got) == (width if total > 0 else 0)
    if total > 0:
        for n, share in zip(got, shares, strict=True):
            assert abs(n - share / total * width) < 1 + 1e-6


def test_every_family_of_causes_has_an_accent() -> None:
    from brim.diagnose.causes import CAUSES, family

    assert {family(cause) for cause in CAUSES} <= set(ACCENTS)
