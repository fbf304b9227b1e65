"""The verdict of a job that runs on is told at once; that of a job that ends, after its end."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.waiting import until

from brim.cli import measured
from brim.cli.measured import Early
from brim.record.findings import Diagnosis
from brim.record.run import is_ending

RUN = Path(__file__).parents[1] / "fixtures" / "runs" / "cpu-main-process"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run whose training process, number 7, has measured what it was asked for."""
    monkeypatch.setattr(measured, "GRACE_S", 0.05)
    folder = shutil.copytree(RUN, tmp_path / "run")
    (folder / ".measured.7").touch()
    return folder


def test_a_job_that_runs_on_has_its_verdict_shown_while_it_runs(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown: list[Diagnosis] = []
    with Early(folder, shown.append) as early:
        until(early.told.is_set)
    assert [d.findings[0].cause for d in shown] == ["input.main-process"]
    assert "measured; the job runs on" in capsys.readouterr().err


def test_a_job_whose_measured_processes_are_ending_is_not_said_to_run_on(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".ending.7").touch()
    shown: list[Diagnosis] = []
    with Early(folder, shown.append) as early:
        early._thread.join(20.0)
    assert (shown, early.found, early.told.is_set()) == ([], None, False)
    assert capsys.readouterr().err == ""


def test_a_job_that_begins_to_end_while_it_is_judged_is_not_said_to_run_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def judge(run: Path, *, warmup: int | None = None) -> Diagnosis:
        (run / ".ending.7").touch()
        return original(run, warmup=warmup)

    original = measured.judge
    monkeypatch.setattr(measured, "judge", judge)
    with Early(folder, lambda found: None) as early:
        early._thread.join(20.0)
    assert early.found is None
    assert capsys.readouterr().err == ""


def test_one_rank_that_ends_before_the_others_does_not_end_the_job(folder: Path) -> None:
    (folder / ".measured.8").touch()
    (folder / ".ending.8").touch()
    assert not is_ending(folder)
    (folder / ".ending.7").touch()
    assert is_ending(folder)
