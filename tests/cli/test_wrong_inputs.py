"""Mistakes at the command line: one or two lines that say what, where and what to do; exit code 2;
no traceback, and nothing left in the folder."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from brim.cli.main import main

VERDICT = {
    "version": 1,
    "window": {"steps": 3, "wall_s": 1.0, "ranks": 1},
    "account": [{"part": "useful", "cause": "compute", "share": 1.0}],
    "findings": [],
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with whole, broken, empty and wrong files in it, to work in."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "cut-run").mkdir()
    (tmp_path / "cut-run" / "run.json").write_text('{"version":')
    files = {
        "verdict.json": json.dumps(VERDICT),
        "later.json": json.dumps({**VERDICT, "version": 99}),
        "short.json": json.dumps({**VERDICT, "account": []}),
        "cut.json": json.dumps(VERDICT)[:40],
        "object.json": "{}",
        "empty.json": "",
        "empty.toml": "",
        "cut.toml": "[data",
        "script.py": "",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "binary.toml").write_bytes(bytes(range(256)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


# the command → words of its message
MISTAKES = {
    "diagnose nothing.json": "nothing.json: no such file or folder",
    "diagnose folder": "folder: no trace in this folder",
    "diagnose empty.json": "empty.json: the file is empty",
    "diagnose object.json": "object.json: not a trace of torch.profiler",
    "diagnose cut.json": "cut.json: not a findings.json (Input data was truncated)",
    "diagnose later.json": "later.json: written by a later brim (version 99 of the file)",
    "diagnose short.json": "short.json: not a findings.json that brim wrote (the account sums to 0",
    "diagnose cut-run": "cut-run/run.json: cannot be read",
    "diagnose --stop verdict.json": "--stop is about a command's run",
    "diagnose --warmup 3 verdict.json": "verdict.json is no run directory",
    "diagnose --json no/x verdict.json": "no/x: there is no folder no",
    "diagnose --html folder verdict.json": "folder: is a folder",
    "diagnose --steps -1 -- true": "argument --steps: -1 is not a number of steps",
    "diagnose --fail-above 7 -- true": "argument --fail-above: 7 is more than the whole",
    "diagnose --headless verdict.json": "brim diagnose: unrecognized arguments: --headless",
    "diagnose --runs object.json -- true": "object.json: cannot make a run directory",
    "diagnose -- nothing": "nothing: no such command",
    "diagnose -- script.py": "script.py: is not a program that can be started",
    "compare verdict.json": "the following arguments are required: B",
    "compare verdict.json folder": "folder: no trace in this folder",
    "compare verdict.json verdict.json --fail-above x": "--fail-above: x is no share",
    "compare verdict.json verdict.json verdict.json": "unrecognized arguments: verdict.json",
    "compare verdict.json verdict.json --json no/x": "no/x: there is no folder no",
    "compare verdict.json verdict.json -- true": "compare takes no command after --",
    "hw nothing": "nothing: No such file or directory",
    "hw --json no/x": "no/x: there is no folder no",
    "hw --json folder": "folder: is a folder",
    "watch nothing": "nothing: no run directory",
    "watch --interval 0 --once": "--interval: 0 is not between 0.1 and 3600 seconds",
    "watch --interval x": "--interval: x is not between",
    "watch --json no/x": "no/x: there is no folder no",
    "watch --prometheus here": "--prometheus here: want ADDRESS:PORT",
    "watch --once -- true": "--once and --json look once",
    "watch -- nothing": "nothing: no such command",
    "plan nothing.toml": "nothing.toml does not exist",
    "plan folder": "folder cannot be read (Is a directory)",
    "plan cut.toml": "cut.toml is not TOML",
    "plan empty.toml": "empty.toml names no model",
    "plan empty.toml --world 0": "--world: 0 is not a number of ranks",
    "plan empty.toml --gpus-per-host 0": "--gpus-per-host: 0 is not a number of GPUs",
    "plan empty.toml --network-gb-s -1": "--network-gb-s: -1 is not between",
    "plan empty.toml --json no/x": "no/x: there is no folder no",
    "tune": "nothing to tune",
    "tune nothing.toml": "nothing.toml does not exist",
    "tune folder": "folder cannot be read (Is a directory)",
    "tune --budget 0 -- true": "--budget: there is no time for a single run",
    "tune --steps 0 -- true": "--steps: 0: at least 10 steps",
    "tune --json no/x -- true": "no/x: there is no folder no",
    "train nothing.toml": "nothing.toml does not exist",
    "train folder": "folder cannot be read (Is a directory)",
    "train cut.toml": "cut.toml is not TOML",
    "train binary.toml": "binary.toml is not TOML",
    "train empty.toml": "the table [model] is missing",
    "train empty.toml --set steps": "--set steps",
    "train empty.toml --world 4": "--world is for --dry-run alone",
    "train empty.toml --export x --dry-run": "--export and --dry-run exclude each other",
    "train empty.toml --steps -1": "brim train: unrecognized arguments: --steps -1",
    "demo --keep object.json": "object.json: cannot be used as a folder",
}


@pytest.mark.parametrize(("words", "says"), MISTAKES.items(), ids=MISTAKES)
def test_a_mistake_is_said_in_two_lines_with_exit_code_2_and_leaves_nothing(
    words: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = shlex.split(words)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    try:
        code: object = main(argv)
    except SystemExit as end:  # argparse
        code = end.code
    out, error = capsys.readouterr()
    assert (code, out) == (2, "")
    assert says in error
    assert error.startswith(("brim: ", f"brim {argv[0]}: "))
    assert 1 <= len(error.splitlines()) <= 2
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
