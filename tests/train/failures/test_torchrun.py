"""Whole jobs: torchrun starts again what was killed, and watchdogs end what hangs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.train import ranked
from tests.train.parallel.processes import on_ranks

from brim.train.saving.folders import manifest

JOB = Path(__file__).parent / "job.py"


def torchrun(output: Path, at: int, who: int) -> subprocess.CompletedProcess[str]:
    output.mkdir()
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [sys.executable, *command, "--max-restarts=1", str(JOB), str(output), str(at), str(who)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )


def test_torchrun_restarts_a_job_whose_rank_was_killed_and_its_losses_are_those_of_none(
    tmp_path: Path,
) -> None:
    done = torchrun(tmp_path / "killed", at=5, who=1)
    assert done.returncode == 0, done.stderr
    on_ranks(2, ranked.run, str(tmp_path / "whole"), {"steps": 8, "rows": 2, "save_steps": 2})
    first, second = ranked.losses(tmp_path / "killed")
    (whole,) = ranked.losses(tmp_path / "whole")
    resumed = len(whole) - len(second)
    assert resumed in (2, 4) and f"resumed after step {resumed} from" in done.stdout
    assert first == whole[: len(first)] and second == whole[resumed:]
    last = "checkpoints/step-00000008"
    assert manifest(tmp_path / "killed" / last) == manifest(tmp_path / "whole" / last)


@dataclass(frozen=True)
class Hangs:
    """One rank never gets its rows."""

    at: int
    who: int

    def __call__(self, rank: int, step: int) -> None:
        if (rank, step) == (self.who, self.at):
            time.sleep(1000)


def test_when_one_rank_hangs_all_are_ended_and_the_stacks_show_which(tmp_path: Path) -> None:
    options = {"steps": 8, "rows": 2, "hook": Hangs(3, 1), "hang_timeout_s": 2.0}
    # the other rank is ended by its own watchdog, or sees that the first is gone
    with pytest.raises(RuntimeError, match=r"(?s)rank 0 (is gone|failed.*Connection)"):
        on_ranks(2, ranked.run, str(tmp_path), options)
    (folder,) = tmp_path.glob("records/*")
    stacks = folder / "hang-stacks.rank1.txt"
    deadline = time.monotonic() + 20
    while "rank1: " not in stacks.read_text() and time.monotonic() < deadline:
        time.sleep(0.1)
    text = stacks.read_text()
    assert "in __call__" in text and "in fetch" in text
    assert re.search(r"rank1: waiting for rows for \d+ s, after 3 steps", text)
