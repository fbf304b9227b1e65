"""A ladder as a person reads it."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from rich.cells import cell_len
from rich.console import Console
from tests.report import examples
from tests.report.browser import PROGRAM, Browser

from brim.diagnose.gain import gain
from brim.record.findings import Finding, Remedy
from brim.record.ladder import Change, Figures, Ladder, Rejected, Rung, Speedup
from brim.report import ladder_rows
from brim.report.ladder import page, render, write_html

SNAPSHOTS = Path(__file__).parent / "snapshots"


def _speed(ratio: float, spread: float = 0.05) -> Speedup:
    return Speedup(ratio=ratio, low=ratio * (1 - spread), high=ratio * (1 + spread),
                   median=ratio * 1.01, pairs=2, steps=80)  # fmt: skip


def example() -> Ladder:
    """Two steps kept on a device, two undone, one cause that needs the user."""
    remains = Finding(
        cause="host.sync", share=0.08, gain=gain("host.sync", 0.08), confidence="high",
        evidence=[],
        remedies=[
            Remedy(id="read-later", summary="keep values on the device", lossless=True,
                   settings={"torch": "total += loss.detach()",
                             "hf-trainer": "TrainingArguments(logging_steps=50)"})
        ],
    )  # fmt: skip
    return Ladder(
        command=["python", "train.py", "--lr", "1e-5"],
        device="NVIDIA H200",
        frameworks=["hf-trainer", "torch"],
        before=Figures(step_s=1.2, gpu_util=0.55, mfu=0.16, input_wait=0.4),
        rungs=[
            Rung(words="8 loader workers", settings={"loader.num_workers": 8},
                 cause="input.workers", speed=_speed(1.6),
                 figures=Figures(step_s=0.75, gpu_util=0.9, mfu=0.256, input_wait=0.02),
                 loss="equal to 1e-07 in 20 steps", alone=_speed(1.7)),
            Rung(words="no activations recomputed", settings={"recompute": "none"},
                 cause="compute.recompute", speed=_speed(1.25),
                 figures=Figures(step_s=0.6, gpu_util=0.92, mfu=0.32, input_wait=0.03),
                 loss="equal to 0.0002 in 20 steps"),
        ],
        total=_speed(2.0),
        rejected=[
            Rejected(words="compiled blocks", settings={"compile.blocks": True},
                     cause="compute.unfused", fate="crashed", why="exit code 1; RuntimeError: no"),
            Rejected(words="fused optimizer", settings={"optimizer.fused": True}, cause="",
                     fate="not beyond the noise", why="1.01× (0.98 – 1.04)", speed=_speed(1.01)),
        ],
        settings={"loader.num_workers": 8, "recompute": "none"},
        change=Change(command=["python", "train.py", "--lr", "1e-5", "--num_workers", "8"],
                      environment={"OMP_NUM_THREADS": "1"},
                      patch="--- a/x.yaml\n+++ b/x.yaml\n-recompute: true\n+recompute: false\n",
                      code=["model.gradient_checkpointing_disable()"]),
        remaining=[remains],
        ended="nothing left",
        runs=14,
        wall_s=840.0,
        notes=["the job is not seeded"],
    )  # fmt: skip


def nothing_kept() -> Ladder:
    return Ladder(command=["python", "train.py"], before=Figures(step_s=0.2), ended="ceiling",
                  runs=1, wall_s=12.0)  # fmt: skip


def hostile() -> Ladder:
    bad = " ".join(examples.HOSTILE)
    plain = example()
    rung = msgspec.structs.replace(plain.rungs[0], words=bad, loss=bad, cause=bad)
    return msgspec.structs.replace(
        plain,
        command=[bad],
        device=bad,
        rungs=[rung],
        rejected=[msgspec.structs.replace(plain.rejected[0], words=bad, why=bad, cause=bad)],
        change=Change(command=[bad], environment={"X": bad}, patch=bad, code=[bad]),
        remaining=[msgspec.structs.replace(plain.remaining[0], cause=bad)],
        notes=[bad],
    )


EXAMPLES = {"kept": example, "nothing": nothing_kept, "hostile": hostile}


def _printed(ladder: Ladder, width: int = 80, *, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    render(ladder, Console(file=file, width=width, color_system=None))
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("name", ["kept", "nothing"])
def test_the_ladder_is_the_recorded_one(name: str) -> None:
    """After a wanted change: delete the file, run once, read the new one, commit it."""
    printed = _printed(EXAMPLES[name]())
    snapshot = SNAPSHOTS / f"ladder-{name}-80.txt"
    if not snapshot.exists():
        snapshot.write_text(printed)
        pytest.fail(f"{snapshot.name} was not there and is written anew: read it")
    assert printed == snapshot.read_text()


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(name: str, width: int) -> None:
    for line in _printed(EXAMPLES[name](), width).splitlines():
        assert cell_len(line) <= width


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_terminal_without_unicode_gets_only_what_it_has(name: str) -> None:
    assert _printed(EXAMPLES[name](), encoding="ascii").isascii()


def test_nothing_that_moves_a_cursor_reaches_the_terminal() -> None:
    printed = _printed(hostile())
    assert not {c for c in printed if ord(c) < 32 and c != "\n"}
    assert "\x9b" not in printed


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_runs_nothing_and_loads_nothing(name: str) -> None:
    text = page(EXAMPLES[name]())
    assert "<script>alert" not in text
    assert "<img" not in text
    assert "http" not in text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")


def test_the_page_has_a_bar_for_each_rung_as_long_as_its_step() -> None:
    text = page(example())
    widths = [row.split('"')[0] for row in text.split('x="0.000%" y="0" width="')[1:]]
    # the first piece is the step without its wait: 60 % of 1.2 s, then 98 and 97 % of the rest
    expected = [0.6, 0.98 / 1.6, 0.97 / 2.0]
    assert [float(w.rstrip("%")) / 100 for w in widths] == pytest.approx(expected, abs=1e-3)


def test_speeds_multiply_up_the_ladder() -> None:
    assert [row.in_all for row in ladder_rows.rows(example())] == ["", "1.60×", "2.00×"]


def test_figures_that_no_rung_has_take_no_column() -> None:
    assert ladder_rows.columns(example()) == ["step_s", "gpu_util", "mfu", "input_wait"]
    assert ladder_rows.columns(nothing_kept()) == ["step_s"]


def test_an_absent_figure_is_a_dash_and_never_zero() -> None:
    without = msgspec.structs.replace(example(), before=Figures(step_s=1.2, input_wait=0.4))
    before = ladder_rows.rows(without)[0]
    assert before.cells == ["1.2 s", "–", "–", "40.0 %"]


def test_what_remains_is_said_in_the_words_of_the_job_s_framework() -> None:
    ((cause, remedy),) = ladder_rows.remaining(example())
    assert cause == "host.sync 8.0 %"
    assert remedy.endswith("TrainingArguments(logging_steps=50)")


def test_the_command_to_run_can_be_pasted_into_a_shell() -> None:
    line = ladder_rows.command_line(example())
    assert line == "OMP_NUM_THREADS=1 python train.py --lr 1e-5 --num_workers 8"


def test_a_page_is_written_at_once_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "ladder.html"
    write_html(example(), path)
    assert path.read_text() == page(example())
    assert [p.name for p in tmp_path.iterdir()] == ["ladder.html"]


@pytest.mark.skipif(PROGRAM is None, reason="no Chromium here")
@pytest.mark.slow
def test_in_a_browser_the_ladder_loads_without_complaint(tmp_path: Path) -> None:
    with Browser(tmp_path / "profile") as browser:
        for name, made in EXAMPLES.items():
            path = tmp_path / f"{name}.html"
            write_html(made(), path)
            for width in (1200, 390):
                browser.view(width, 800)
                browser.open(path)
                wide = browser.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} scrolls sideways at {width}"
        assert browser.complaints == []
