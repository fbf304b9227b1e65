"""Real gloo ranks with the hooks in them: who waits for whom, and what is sent too often.

Work is slept, as on a host whose device computes, so that ranks do not take each other's cores.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.forks import TORCH, Forks

from brim.cli.measured import host_facts, judge
from brim.observe import launch
from brim.record import run as runs
from brim.record.findings import Finding
from brim.record.run import read_run
from brim.report.live_job import JobFollower

JOB = """
import contextlib, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

how, steps = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4))))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
micro = 8 if how in ("each", "last") else 1

def seconds(step):
    if how == "one":
        return 0.08 if rank == 1 else 0.02
    if how == "turns":
        return 0.08 if rank == step % world else 0.02
    return 0.03 / micro

for step in range(steps):
    for m in range(micro):
        time.sleep(seconds(step))
        with model.no_sync() if how == "last" and m < micro - 1 else contextlib.nullcontext():
            model(torch.randn(4, 512)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
"""

Diagnosed = Callable[..., dict[str, Finding]]


@pytest.fixture
def diagnosed(tmp_path: Path, forks: Callable[..., Forks]) -> Diagnosed:
    """Train in one of the ways on some ranks, with the hooks in them; the findings by cause."""
    (tmp_path / "job.py").write_text(JOB)

    def run(how: str, ranks: int, steps: int = 40) -> dict[str, Finding]:
        argv = [str(tmp_path / "job.py"), how, str(steps)]
        folder = runs.create(tmp_path / "runs", argv, host_facts(), "0")
        env = {**launch.environment(folder, launch.Options()), "OMP_NUM_THREADS": "1"}
        for done in forks(*TORCH).run(argv, cwd=tmp_path, env=env, ranks=ranks):
            assert done.returncode == 0, done.stderr[-3000:]
        runs.finish(folder, exit_code=0, wall_s=1.0)
        return {f.cause: f for f in judge(folder).findings}

    return run


def test_one_slow_rank_of_four_is_a_straggler_that_the_others_wait_for(
    diagnosed: Diagnosed, tmp_path: Path
) -> None:
    found = diagnosed("one", 4)
    # three of four ranks wait 60 of 80 ms in each step: 56 % of all time
    straggler = found["comm.straggler-device"]
    assert 0.25 < straggler.share < 0.75
    assert any("it is rank 1 in" in line for line in straggler.evidence)
    (folder,) = (tmp_path / "runs").iterdir()
    assert [p.header.rank for p in read_run(folder).processes] == [0, 1, 2, 3]
    view = JobFollower(folder).view()
    assert view is not None and view.across is not None and view.across.wait is not None
    assert view.across.last == 1
    assert view.across.wait[1] == min(view.across.wait.values())


def test_ranks_that_are_late_in_turns_are_late_by_their_data(diagnosed: Diagnosed) -> None:
    found = diagnosed("turns", 4)
    assert "comm.straggler-device" not in found
    assert 0.25 < found["comm.straggler-data"].share < 0.75


def test_gradients_sent_in_each_of_eight_micro_batches_are_seven_times_too_many(
    diagnosed: Diagnosed,
) -> None:
    found = diagnosed("each", 2)
    many = found["comm.too-many"]
    assert any("all-reduced in 8 backward passes a step" in line for line in many.evidence)
    assert "no_sync" in many.remedies[0].settings["torch"]


def test_gradients_sent_once_a_step_are_not_too_many(diagnosed: Diagnosed) -> None:
    assert "comm.too-many" not in diagnosed("last", 2)
