"""``brim tune``: usage, a real job from its fault to its cure, interruption, and going on."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from brim.cli.main import main
from brim.cli.tune import _seconds

# Collecting garbage after each step takes many times what the step itself takes.
JOB = """
import gc, sys, time, torch

torch.manual_seed(0)
alive = [{"record": [n]} for n in range(150_000)]
model = torch.nn.Linear(64, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for n in range(400):
    x = torch.randn(32, 64)
    loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    time.sleep(0.01)  # a device that computes
    gc.collect()
"""


# Fifteen steps are enough here; a job of unknown rhythm is measured for five seconds at least.
TUNE = """
import functools, sys
from brim.cli.main import main
from brim.tune import runner

runner.Window = functools.partial(runner.Window, least_s=1.0)
sys.exit(main(sys.argv[1:]))
"""


def _error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    code = main(["tune", *argv])
    out, error = capsys.readouterr()
    assert (code, out) == (2, "")
    assert 1 <= len(error.splitlines()) <= 2
    return error


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "nothing to tune"),
        (["sft.toml", "--", "python", "x.py"], "both a command and sft.toml were given"),
        (["--json", "/nowhere/x.json", "--", "true"], "there is no folder /nowhere"),
        (["--html", "/nowhere/x.html", "--", "true"], "there is no folder /nowhere"),
        (["--dir", "/dev/null/x", "--", "true"], "cannot be used"),
        (["--", "no-such-program-anywhere"], "no such command"),
        (["nowhere.toml"], "nowhere.toml does not exist"),
    ],
)
def test_what_cannot_be_tuned_is_said_in_two_lines_before_anything_runs(
    argv: list[str],
    says: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert says in _error(argv, capsys)


@pytest.mark.parametrize(
    ("text", "seconds"), [("20m", 1200), ("1h30m", 5400), ("90s", 90), ("90", 90), ("2h5s", 7205)]
)
def test_a_budget_is_a_time_as_people_write_it(text: str, seconds: int) -> None:
    assert _seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "20 min", "-5m", "0s", "1.5h", "20m20m"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        _seconds(text)


@pytest.mark.parametrize("steps", ["0", "9", "ten", "-1"])
def test_a_window_too_small_to_compare_is_refused(
    steps: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        main(["tune", "--steps", steps, "--", "true"])
    assert end.value.code == 2
    assert "at least 10 steps" in capsys.readouterr().err


def _tune(folder: Path, *options: str, wait: bool = True) -> subprocess.Popen[str]:
    (folder / "train.py").write_text(JOB)
    argv = [sys.executable, "-c", TUNE, "tune", "--steps", "15", "--dir", "tune",
            "--json", "ladder.json", "--html", "ladder.html", *options,
            "--", sys.executable, "train.py"]  # fmt: skip
    child = subprocess.Popen(
        argv, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    if wait:
        out, error = child.communicate(timeout=240)
        assert child.returncode == 0, error
        assert "no empty_cache() and gc.collect() in the loop" in out
    return child


def _ladder(folder: Path) -> dict[str, Any]:
    ladder: dict[str, Any] = json.loads((folder / "ladder.json").read_text())
    return ladder


@pytest.mark.slow
def test_an_unmodified_job_is_cured_interrupted_and_gone_on_with(tmp_path: Path) -> None:
    child = _tune(tmp_path, wait=False)
    log = tmp_path / "tune" / "trials.jsonl"
    deadline = time.monotonic() + 120
    while not log.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    child.send_signal(signal.SIGINT)  # in the second run
    out, error = child.communicate(timeout=60)
    assert child.returncode == 130, error
    assert "interrupted" in out
    first = _ladder(tmp_path)
    assert (first["ended"], first["runs"]) == ("interrupted", 1)

    _tune(tmp_path)
    ladder = _ladder(tmp_path)
    assert ladder["settings"] == {"memory.flush": 0}
    (rung,) = ladder["rungs"]
    assert rung["cause"] == "memory.cache-flush"
    assert ladder["total"]["low"] > 1.5
    assert rung["loss"].startswith("equal to")
    assert ladder["ended"] == "ceiling"
    assert any("gc.collect" in text for text in ladder["change"]["code"])
    assert "gc.collect" in (tmp_path / "ladder.html").read_text()
    assert (tmp_path / "train.py").read_text() == JOB

    runs = log.read_text().count("\n")
    _tune(tmp_path)
    assert log.read_text().count("\n") == runs
    assert _ladder(tmp_path) == ladder
