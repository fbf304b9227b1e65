"""``brim diagnose``: inputs, outputs, exit codes, and the job that never notices."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brim.cli.main import main
from brim.record import findings

RECORDED = Path(__file__).parents[1] / "fixtures" / "runs" / "cpu-main-process"


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A copy of a small recorded run: its samples are made in the training process."""
    return shutil.copytree(RECORDED, tmp_path / "run")


def _error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main(argv)
    out, error = capsys.readouterr()
    assert (code, out) == (2, "")
    assert 1 <= len(error.splitlines()) <= 2
    assert error.startswith("brim diagnose: ")
    return error


# ---------------------------------------------------------------------------------- usage


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "nothing to diagnose"),
        (["--"], "nothing to diagnose"),
        (["run", "--", "true"], "both a command and run were given"),
        (["/nowhere/at/all"], "no such file or folder"),
        (["--", "no-such-program-anywhere"], "no such command"),
        (["--json", "/nowhere/x.json", "--", "true"], "there is no folder /nowhere"),
        (["--html", "/nowhere/x.html", "--", "true"], "there is no folder /nowhere"),
        (["--runs", "/dev/null/x", "--", "true"], "cannot make a run directory"),
    ],
)
def test_what_cannot_be_diagnosed_is_said_in_two_lines_before_a_job_runs(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in _error(["diagnose", *argv], capsys)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--steps", "0"), ("--steps", "-3"), ("--steps", "many"), ("--warmup", "-1"),
        ("--warmup", "1.5"), ("--fail-above", "1.01"), ("--fail-above", "120%"),
        ("--fail-above", "nan"), ("--fail-above", "much"), ("--fail-above", "-0.1"),
    ],
)  # fmt: skip
def test_numbers_that_make_no_sense_are_refused_with_the_option_and_the_value(
    option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["diagnose", f"{option}={value}", "x"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert f"argument {option}: {value} is" in error
    assert len(error.splitlines()) == 2


# ---------------------------------------------------------------------------------- an earlier run


def test_a_recorded_run_is_judged_again_and_keeps_its_verdict(
    recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diagnose", str(recorded)]) == 0
    out, error = capsys.readouterr()
    assert error == ""
    assert "input.main-process" in out
    assert "job/train.py:15" in out
    found = findings.read(recorded / "findings.json")
    assert [f.cause for f in found.findings] == ["input.main-process"]
    assert found.findings[0].share == pytest.approx(0.75, abs=0.05)


def test_json_and_html_are_written_where_asked(recorded: Path, tmp_path: Path) -> None:
    data, page = tmp_path / "found.json", tmp_path / "report.html"
    assert main(["diagnose", str(recorded), "--json", str(data), "--html", str(page)]) == 0
    assert data.read_bytes() == (recorded / "findings.json").read_bytes()
    assert "input.main-process" in page.read_text()


def test_a_disk_that_fills_up_costs_the_file_and_not_the_verdict(
    recorded: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    asked = tmp_path / "x.json"
    write = findings.write_atomic

    def full(path: Path, data: bytes) -> None:
        if path == asked:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        write(path, data)

    monkeypatch.setattr(findings, "write_atomic", full)
    assert main(["diagnose", str(recorded), "--json", str(asked)]) == 2
    out, error = capsys.readouterr()
    assert "input.main-process" in out
    assert error == f"brim diagnose: {asked}: cannot be written (No space left on device)\n"


@pytest.mark.parametrize("option", [["--steps", "5"], ["--stop"], ["--runs", "elsewhere"]])
def test_an_option_of_a_commands_run_is_refused_for_a_run_that_is_over(
    option: list[str], recorded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    error = _error(["diagnose", *option, str(recorded)], capsys)
    assert f"{option[0]} is about a command's run, and {recorded} is measured already" in error


def test_a_script_that_cannot_be_started_itself_is_told_apart_from_no_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (script := tmp_path / "train.py").write_text("")
    error = _error(["diagnose", "--", str(script), "--lr", "1"], capsys)
    assert f"python {script} …" in error


@pytest.mark.parametrize(("limit", "code"), [("0.2", 3), ("20%", 3), ("0.9", 0), ("100%", 0)])
def test_exit_code_3_when_a_finding_takes_more_than_the_limit(
    recorded: Path, limit: str, code: int
) -> None:
    assert main(["diagnose", str(recorded), "--fail-above", limit]) == code


def test_the_warm_up_can_be_asked_for(recorded: Path) -> None:
    assert main(["diagnose", str(recorded), "--warmup", "20"]) == 0
    found = findings.read(recorded / "findings.json")
    assert found.window.steps == 6
    assert "as asked" in found.window.chosen


def test_a_run_directory_that_cannot_be_written_is_judged_all_the_same(
    recorded: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(findings, "write_atomic", full)
    assert main(["diagnose", str(recorded)]) == 0
    assert "input.main-process" in capsys.readouterr().out


@pytest.mark.parametrize("cut", [1, 500, 3000])
def test_records_that_were_cut_off_say_so(
    recorded: Path, cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    (steps,) = recorded.glob("steps.*.jsonl")
    steps.write_bytes(steps.read_bytes()[:-cut])
    assert main(["diagnose", str(recorded)]) == 0
    assert "cut off" in " ".join(capsys.readouterr().out.split())


# ---------------------------------------------------------------------------------- a command


def _brim(tmp_path: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brim", "diagnose", *argv], capture_output=True, text=True,
        check=False, cwd=tmp_path, timeout=120, env=dict(os.environ), input="",
    )  # fmt: skip


@pytest.mark.parametrize("code", [0, 3])
def test_a_command_that_never_trains_keeps_its_output_and_code_and_is_explained(
    tmp_path: Path, code: int
) -> None:
    done = _brim(tmp_path, "--", "sh", "-c", f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, done.stdout) == (code, "out\n")
    said = " ".join(done.stderr.split())
    assert "err" in said
    assert "Nothing was measured" in said
    assert "hooks were loaded in no process" in said
    assert ("exit code 3" in said) is (code == 3)
    assert "Traceback" not in said


def test_python_that_never_imports_torch_is_told_from_no_python(tmp_path: Path) -> None:
    done = _brim(tmp_path, "--", sys.executable, "-c", "print(1)")
    assert (done.returncode, done.stdout) == (0, "1\n")
    assert "torch was never imported" in " ".join(done.stderr.split())


def test_a_run_directory_is_made_for_its_owner_and_holds_no_secret(tmp_path: Path) -> None:
    _brim(tmp_path, "--", "sh", "-c", "true", "--api-key", "abcdef123456")
    (folder,) = (tmp_path / "runs").iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    info = json.loads((folder / "run.json").read_bytes())
    assert info["command"] == ["sh", "-c", "true", "--api-key", "***"]
    assert info["exit_code"] == 0
    for path in folder.iterdir():
        assert b"abcdef123456" not in path.read_bytes(), path


@pytest.mark.parametrize("code", [0, 5])
def test_a_job_that_removes_the_run_directory_keeps_its_own_code(tmp_path: Path, code: int) -> None:
    done = _brim(tmp_path, "--", "sh", "-c", f"rm -rf runs; exit {code}")
    assert done.returncode == (code or 2)  # a verdict was asked for and there is none
    assert "no run directory" in done.stderr
    assert "Traceback" not in done.stderr
