"""One run of a command under a setting."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brim.cli.measured import judge
from brim.errors import InputError
from brim.tune.jobs import of_command
from brim.tune.knobs import Settings
from brim.tune.outcome import Outcome
from brim.tune.runner import Runner, Window, hooked, in_vain, progress

PYTHON = sys.executable
WINDOW = Window(steps=10, least_s=0.1, most_s=30)

# Writes the records of 20 steps, as the hooks would, then waits to be ended.
RECORDS = """
import json, os, sys, time
folder = os.environ["BRIM_RUN_DIR"]
apply = json.loads(os.environ["APPLY"])
wall = 0.05 if apply else 0.1
lines = [{"kind": "header", "pid": os.getpid()}]
lines += [{"n": n, "t": n * wall, "wall": wall, "clock": "opt0", "cpu": wall} for n in range(20)]
with open(f"{folder}/steps.rank0.{os.getpid()}.jsonl", "w") as f:
    f.writelines(json.dumps(line) + chr(10) for line in lines)
print("options", os.environ["BRIM_OPTIONS"])
open(f"{folder}/.measured.{os.getpid()}", "w").close()
time.sleep(600)
"""


def _prepare(
    command: list[str], settings: Settings, cwd: Path, alternate: Any = None
) -> SimpleNamespace:
    text = json.dumps({**settings, "alternate": alternate} if alternate else dict(settings))
    return SimpleNamespace(command=command, env={"APPLY": text})


def _runner(tmp_path: Path, code: str, window: Window = WINDOW) -> Runner:
    command = [PYTHON, "-c", code]
    return Runner(
        command, tmp_path / "runs", hooked(command, _prepare, window), judge=judge, host={}
    )


def _options(outcome: Outcome) -> dict[str, Any]:
    text = (Path(outcome.folder) / "output.log").read_text().partition("options ")[2]
    options: dict[str, Any] = json.loads(text.splitlines()[0])
    return options


def test_a_run_is_measured_under_its_setting_and_ended(tmp_path: Path) -> None:
    runner = _runner(tmp_path, RECORDS)
    plain, cured = runner({}), runner({"debug": False})
    assert (plain.ending, cured.ending) == ("measured", "measured")
    assert plain.figures["step_s"] == pytest.approx(0.1)
    assert cured.figures["step_s"] == pytest.approx(0.05)
    assert plain.folder != cured.folder
    assert plain.wall_s < 60


def test_only_the_first_run_of_a_setting_is_profiled_and_every_run_records_losses(
    tmp_path: Path,
) -> None:
    runner = _runner(tmp_path, RECORDS)
    seen = [_options(runner(s)) for s in ({}, {}, {"debug": False})]
    assert [o["profile"] for o in seen] == [True, False, True]
    assert all(o["losses"] and o["steps"] == 10 and o["most_s"] == 30 for o in seen)


def test_a_run_that_switches_has_twice_the_steps_in_blocks_of_at_least_five(
    tmp_path: Path,
) -> None:
    options = _options(_runner(tmp_path, RECORDS)({}, {"gc.freeze": True}))
    assert (options["steps"], options["profile"]) == (20, False)
    assert [Window(steps=n).block for n in (10, 40, 80)] == [5, 5, 10]


def test_a_job_that_fails_is_an_outcome_with_its_last_words(tmp_path: Path) -> None:
    outcome = _runner(tmp_path, "import sys; sys.exit('no such column: label')")({})
    assert outcome.ending == "crashed"
    assert "no such column: label" in outcome.why


def test_there_is_no_such_command_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such command"):
        of_command(["no-such-program"], tmp_path / "runs", judge=judge, host={}, window=WINDOW)
    assert not (tmp_path / "runs").exists()


def _says(folder: Path, rank: int, **states: str) -> None:
    lines = [
        {"kind": "knob", "id": id.replace("__", "."), "state": state, "pid": rank}
        for id, state in states.items()
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"applied.rank{rank}.jsonl").write_text(text)


def test_a_run_is_in_vain_when_every_rank_has_found_nothing_to_act_on(tmp_path: Path) -> None:
    assert not in_vain(tmp_path, {"liger"})
    _says(tmp_path, 0, liger="unavailable")
    assert in_vain(tmp_path, {"liger"})
    assert not in_vain(tmp_path, set())
    assert not in_vain(tmp_path, {"liger", "compile.blocks"}), "one has not spoken yet"
    _says(tmp_path, 1, compile__blocks="unavailable")
    assert not in_vain(tmp_path, {"liger"}), "rank 1 has not spoken yet"
    _says(tmp_path, 1, liger="applied")
    assert not in_vain(tmp_path, {"liger"})
    _says(tmp_path, 1, liger="failed")
    assert in_vain(tmp_path, {"liger"})


def test_what_brim_writes_beside_the_job_is_no_sign_of_its_life(tmp_path: Path) -> None:
    (tmp_path / "devices.host.jsonl").write_text("x" * 100)
    (tmp_path / "run.json").write_text("{}")
    assert progress(tmp_path) == 0
    (tmp_path / "output.log").write_text("epoch 1")
    assert progress(tmp_path) == len("epoch 1")
    os.makedirs(tmp_path / "output" / "records")
    (tmp_path / "output" / "records" / "steps.rank0.jsonl").write_text("{}\n")
    assert progress(tmp_path) > len("epoch 1") + 3
