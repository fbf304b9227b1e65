"""``with brim.observe()`` in programs of their own: the hooks stay in the process that has them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.forks import TORCH, Forks

from brim.api import observe
from brim.errors import UsageError
from brim.record.run import read_run

# A program that trains; what it observes is appended.  Everything is imported before brim is asked.
PROGRAM = """
import json, os, sys
import torch, torch.distributed
from torch.utils.data import DataLoader, TensorDataset
import brim

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))

def train(steps, workers=0):
    n = 0
    while n < steps:
        for x, y in DataLoader(data, batch_size=8, num_workers=workers):
            (model(x) - y).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            n += 1
            if n % 5 == 0:
                torch.save(model.state_dict(), "model.pt")
            if n == steps:
                break
"""

Program = Callable[..., Any]


@pytest.fixture
def program(tmp_path: Path, forks: Callable[..., Forks]) -> Program:
    """Run the program and more lines; each rank's last line of output is JSON."""

    def run(more: str, *, code: int = 0, ranks: int = 1) -> Any:
        (tmp_path / "job.py").write_text(PROGRAM + more)
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = forks(*TORCH).run([str(tmp_path / "job.py")], cwd=tmp_path, env=env, ranks=ranks)
        assert [rank.returncode for rank in done] == [code] * ranks, done[0].stderr
        said = [json.loads(rank.stdout.splitlines()[-1]) for rank in done if rank.stdout]
        return said if ranks > 1 else next(iter(said), {})

    return run


def test_a_block_is_measured_and_what_comes_after_it_is_not(
    program: Program, tmp_path: Path
) -> None:
    before = {name: os.environ.get(name) for name in ("PYTHONPATH", "BRIM_RUN_DIR")}
    found = program(
        """
train(3)
with brim.observe("run") as seen:
    train(30, workers=1)
train(50)
with brim.observe("second") as again:
    train(12)
print(json.dumps({
    "steps": seen.diagnosis.window.steps, "folder": str(seen.folder),
    "again": again.diagnosis.window.steps,
    "environment": {n: os.environ.get(n) for n in ("PYTHONPATH", "BRIM_RUN_DIR")}}))
"""
    )
    run, second = read_run(tmp_path / "run"), read_run(tmp_path / "second")
    (process,), (other,) = run.processes, second.processes
    assert sum(s.clock.startswith("opt") for s in process.steps) == 30
    assert sum(s.clock.startswith("opt") for s in other.steps) == 12
    assert sum(s.save_n for s in process.steps) == 6  # torch.save was imported long before
    assert process.footer is not None
    assert process.footer.failures == {}
    assert run.info.exit_code == 0
    assert sum(s.worker_starts for s in process.steps) == 4  # one for each time over the data
    assert 10 < found["steps"] <= 29
    assert 4 < found["again"] <= 11
    assert (tmp_path / "run" / "findings.json").exists()
    assert (tmp_path / "run" / "devices.host.jsonl").exists()
    assert found["environment"] == before


def test_an_error_passes_through_and_leaves_the_records(program: Program, tmp_path: Path) -> None:
    program(
        """
with brim.observe("run"):
    train(10)
    raise SystemExit(7)
""",
        code=7,
    )
    run = read_run(tmp_path / "run")
    assert run.info.exit_code == 1
    assert len(run.processes[0].steps) >= 10
    assert not (tmp_path / "run" / "findings.json").exists()


def test_under_brim_diagnose_nothing_is_measured_twice(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(
        PROGRAM
        + """
with brim.observe("run") as seen:
    train(12)
print(json.dumps({"why": seen.why_none, "folder": seen.folder}))
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "brim", "diagnose", "--", sys.executable, "job.py"],
        cwd=tmp_path, capture_output=True, text=True, check=True, timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    found = json.loads(done.stdout.splitlines()[-1])
    assert found == {"why": "this process is measured by brim already", "folder": None}
    assert not (tmp_path / "run").exists()
    (folder,) = (tmp_path / "runs").iterdir()
    assert len(read_run(folder).processes[0].steps) >= 12


def test_a_folder_that_holds_a_run_is_refused_before_anything_is_patched(
    program: Program, tmp_path: Path
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    found = program(
        """
from brim.errors import InputError
try:
    with brim.observe("run"):
        train(1)
except InputError as error:
    print(json.dumps({"error": str(error).splitlines()[0], "hooks": "_brim_hooks" in sys.modules}))
"""
    )
    assert found == {"error": "run: holds a run already", "hooks": False}


RANKS = """
torch.distributed.init_process_group("gloo")
with brim.observe() as seen:
    train(12)
    torch.distributed.barrier()
told = [None, None]
torch.distributed.all_gather_object(told, [str(seen.folder), seen.diagnosis is not None])
print(json.dumps(told))
"""


def test_ranks_agree_on_a_folder_and_the_first_has_the_diagnosis(
    program: Program, tmp_path: Path
) -> None:
    told, same = program(RANKS, ranks=2)
    assert told == same
    (first, judged), (second, not_judged) = told
    assert first == second
    assert (judged, not_judged) == (True, False)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [p.header.rank for p in read_run(folder).processes] == [0, 1]


def test_ranks_that_cannot_agree_yet_are_told_to_name_a_folder(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UsageError, match="no process group yet"), observe():
        pass
