"""From a run directory to an outcome."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.cli.measured import judge
from brim.record.run import RunInfo, save_info
from brim.tune.outcome import Outcome
from brim.tune.process import End
from brim.tune.reading import LOG, read_outcome

RECORDED = Path(__file__).parents[1] / "fixtures" / "runs" / "cpu-main-process"
MEASURED = End("measured", None)


def _write(folder: Path, rank: int, walls: list[float], **header: Any) -> None:
    lines: list[dict[str, Any]] = [{"kind": "header", "pid": 100 + rank, "rank": rank, **header}]
    t = 0.0
    for n, wall in enumerate(walls):
        t += wall
        lines.append({"n": n, "t": t, "wall": wall, "clock": "opt0", "cpu": wall})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"steps.rank{rank}.{100 + rank}.jsonl").write_text(text)


def _folder(tmp_path: Path, *ranks: list[float]) -> Path:
    save_info(tmp_path, RunInfo(command=["python", "train.py"]))
    for rank, walls in enumerate(ranks):
        _write(tmp_path, rank, walls, world=len(ranks))
    return tmp_path


def _read(folder: Path, end: End = MEASURED) -> Outcome:
    return read_outcome(folder, folder, end, judge, 12.0)


def test_the_steps_are_the_steady_ones_and_the_mean_over_ranks(tmp_path: Path) -> None:
    slow_start = [5.0, 3.0, *[0.10] * 20]
    found = _read(_folder(tmp_path, slow_start, [0.12 if w == 0.1 else w for w in slow_start]))
    assert found.ending == "measured"
    assert set(found.steps) == set(range(2, 22))
    assert all(seconds == pytest.approx(0.11) for seconds in found.steps.values())
    assert found.figures["step_s"] == pytest.approx(0.11)
    assert found.ranks == 2
    assert found.wall_s == 12.0


def test_a_recorded_run_has_its_findings_with_the_figures_of_the_evidence(tmp_path: Path) -> None:
    folder = shutil.copytree(RECORDED, tmp_path / "run")
    found = _read(folder)
    assert found.findings[0].cause == "input.main-process"
    assert found.findings[0].facts["blocked"] == 0
    assert "no accelerator" in found.device
    assert found.figures["input_wait"] > 0.3


@pytest.mark.parametrize(
    ("metrics", "packed", "work"),
    [
        ({"samples_per_s": 40.0, "tokens_per_s": 8000.0}, False, 4.0),
        ({"samples_per_s": 40.0, "tokens_per_s": 8000.0}, True, 800.0),
        ({"samples_per_s": 40.0}, True, 4.0),
        ({}, True, None),
    ],
)
def test_the_work_of_a_step_is_in_samples_but_of_packed_rows_in_tokens(
    metrics: dict[str, float], packed: bool, work: float | None, tmp_path: Path
) -> None:
    folder = _folder(tmp_path, [5.0, *[0.1] * 20])
    found = read_outcome(
        folder, folder, MEASURED,
        lambda path: msgspec.structs.replace(judge(path), metrics=metrics), 12.0, packed=packed,
    )  # fmt: skip
    assert found.work == (pytest.approx(work) if work else None)
    assert found.packed is packed


def test_losses_are_read_for_all_steps_and_what_is_not_finite_is_null(tmp_path: Path) -> None:
    folder = _folder(tmp_path, [5.0, *[0.1] * 20])
    lines = [{"n": 0, "loss": 3.0}, {"n": 1, "loss": None}, {"n": 2, "loss": 2.5}]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "losses.rank0.100.jsonl").write_text(text)
    assert _read(folder).losses == {0: 3.0, 1: None, 2: 2.5}


def test_four_steady_steps_are_too_few(tmp_path: Path) -> None:
    found = _read(_folder(tmp_path, [1.0] * 5))
    assert found.ending == "nothing measured"
    assert "fewer than 5 steady steps" in found.why


def test_a_job_that_never_trained_says_what_was_seen(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    (folder / "processes.jsonl").write_text('{"kind":"python","pid":1}\n')
    found = _read(folder, End("exited", 0))
    assert (found.ending, found.why) == (
        "nothing measured", "Python ran, but torch was never imported",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("end", "output", "ending", "why"),
    [
        (End("exited", 1), "ValueError: no data", "crashed", "exit code 1; ValueError: no data"),
        (
            End("exited", 1), "torch.OutOfMemoryError: CUDA out of memory. Tried …\n",
            "out of memory", "Tried",
        ),
        (End("exited", 137), "", "out of memory", "exit code 137; it printed nothing"),
        (End("hung", None), "step 3\n\n", "hung", "no sign of life any more; step 3"),
        (End("exited", 139), "Segmentation fault", "crashed", "exit code 139"),
    ],
)  # fmt: skip
def test_how_a_run_failed_is_told_with_its_last_words(
    end: End, output: str, ending: str, why: str, tmp_path: Path
) -> None:
    folder = _folder(tmp_path, [5.0, *[0.1] * 20])
    (folder / LOG).write_text(output)
    found = _read(folder, end)
    assert found.ending == ending
    assert why in found.why
    assert found.steps == {}


def test_the_exception_that_the_hooks_saw_says_more_than_the_last_line(tmp_path: Path) -> None:
    folder = _folder(tmp_path, [0.1] * 3)
    (folder / LOG).write_text("wandb: synced\n")
    error = {"kind": "error", "name": "OutOfMemoryError", "text": "tried 2 GiB", "pid": 100}
    (folder / "applied.rank0.jsonl").write_text(json.dumps(error) + "\n")
    found = _read(folder, End("exited", 1))
    assert found.ending == "out of memory"
    assert "OutOfMemoryError: tried 2 GiB" in found.why


def test_what_became_of_the_knobs_is_kept_also_when_the_run_failed(tmp_path: Path) -> None:
    folder = _folder(tmp_path, [0.1] * 3)
    line = {"kind": "knob", "id": "debug", "state": "unavailable", "reason": "none is on", "pid": 1}
    (folder / "applied.rank0.jsonl").write_text(json.dumps(line) + "\n")
    found = _read(folder, End("exited", 1))
    assert found.missing({"debug", "liger"}) == {"debug": "none is on"}


def test_a_job_without_records_is_nothing_measured_or_its_failure(tmp_path: Path) -> None:
    assert read_outcome(tmp_path, None, MEASURED, judge, 1.0).ending == "nothing measured"
    assert read_outcome(tmp_path, None, End("exited", 2), judge, 1.0).ending == "crashed"
