"""Real jobs with the hooks in them: what is recorded, and that they never notice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from brim.observe.launch import INJECT
from brim.record.lines import read_lines
from brim.record.steps import Process, read_process

Hooked = Callable[..., subprocess.CompletedProcess[str]]

# A training script as people write it; STEPS, and what happens in a step, come from outside.
JOB = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset

def in_step(n):
    pass

{extra}

def main():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(64, 8), torch.randn(64, 1))
    n = 0
    while n < {steps}:
        for x, y in DataLoader(data, batch_size=8, num_workers={workers}):
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            n += 1
            in_step(n)
            if n == {steps}:
                break
    print("loss %.6f" % loss.item())

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def job(tmp_path: Path) -> Callable[..., Path]:
    def write(extra: str = "", *, steps: int = 12, workers: int = 0) -> Path:
        path = tmp_path / "train_job.py"
        text = JOB.format(extra=textwrap.dedent(extra), steps=steps, workers=workers)
        path.write_text(text)
        return path

    return write


def _processes(tmp_path: Path) -> list[Process]:
    files = sorted((tmp_path / "runs").glob("steps.*.jsonl"))
    return [p for p in map(read_process, files) if p is not None]


def _kinds(tmp_path: Path) -> list[str]:
    return [kind for kind, _ in read_lines(tmp_path / "runs" / "processes.jsonl")]


# ---------------------------------------------------------------------------------- without torch


def test_python_without_torch_is_noted_and_nothing_else_is_imported(
    hooked: Hooked, tmp_path: Path
) -> None:
    done = hooked("import sys; print('torch' in sys.modules, 'brim' in sys.modules)")
    assert (done.stdout, done.stderr) == ("False False\n", "")
    assert _kinds(tmp_path) == ["python"]


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_a_python_that_ignores_the_path_runs_without_hooks(
    hooked: Hooked, tmp_path: Path, flag: str
) -> None:
    done = hooked(argv=[flag, "-c", "print(1)"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "1\n", "")
    assert list((tmp_path / "runs").iterdir()) == []


def test_the_users_own_sitecustomize_and_path_work_as_before(
    hooked: Hooked, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("import sys\nsys.mine = __file__\n")
    (own / "helper.py").write_text("NAME = 'mine'\n")
    code = "import sys, helper, sitecustomize; print(helper.NAME, sys.mine, sitecustomize.__file__)"
    done = hooked(code, PYTHONPATH=str(own))
    assert done.stdout == "mine {0} {0}\n".format(own / "sitecustomize.py")
    assert _kinds(tmp_path) == ["python"]


def test_an_error_in_the_users_own_sitecustomize_is_reported_as_python_does(
    hooked: Hooked, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "sitecustomize.py").write_text("raise ValueError('its own fault')\n")
    done = hooked("print('goes on')", PYTHONPATH=str(own))
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "its own fault" in done.stderr


def test_broken_options_switch_the_hooks_off_and_not_the_job(hooked: Hooked) -> None:
    done = hooked("print('goes on')", BRIM_OPTIONS="{not json")
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert "brim: hooks are off" in done.stderr


def test_a_job_whose_run_directory_is_gone_is_not_harmed(hooked: Hooked) -> None:
    done = hooked("print('goes on')", BRIM_RUN_DIR="/nowhere/at/all")
    assert (done.returncode, done.stdout) == (0, "goes on\n")


def _other_pythons() -> list[str]:
    """Interpreters of this machine from 3.8 on, other than this one."""
    folder = Path.home() / ".pyenv" / "versions"
    found = sorted(folder.glob("3.*/bin/python")) if folder.is_dir() else []
    return [str(p) for p in found if int(p.parts[-3].split(".")[1]) >= 8]


@pytest.mark.parametrize(
    "python", _other_pythons() or [sys.executable], ids=lambda p: Path(p).parts[-3]
)
def test_another_python_without_brims_dependencies_runs_the_hooks(
    hooked: Hooked, tmp_path: Path, python: str
) -> None:
    code = """
import sys
from _brim_hooks import batches, facts, interpreter, loader, recorder, sampler
from _brim_hooks import training, transfers, window, worker
rec = recorder.recorder()
rec.tick("opt0")
rec.finish("done")
print(recorder._failures)
"""
    done = hooked(code, python=python)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{}\n", "")
    (process,) = _processes(tmp_path)
    assert [s.clock for s in process.steps] == ["opt0", "exit"]
    assert process.footer is not None


# ---------------------------------------------------------------------------------- with torch


def test_steps_loader_backward_and_workers_are_recorded(
    hooked: Hooked, job: Callable[..., Path], tmp_path: Path
) -> None:
    script = job(workers=1)
    done = hooked(argv=[str(script)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("loss ")
    assert done.stderr == ""
    (process,) = _processes(tmp_path)
    ticks = [s for s in process.steps if s.clock == "opt0"]
    assert len(ticks) == 12
    assert sum(s.backward_n for s in process.steps) == 12
    assert sum(s.batches for s in process.steps) == 12
    assert all(s.optimizer > 0 for s in ticks)
    assert sum(s.worker_starts for s in process.steps) == 2  # two epochs of eight batches
    assert process.footer is not None
    assert process.footer.failures == {}
    assert process.footer.why == "the process ended"
    assert "torch" in process.versions
    assert _kinds(tmp_path).count("torch") >= 1


FULL = """
import pathlib
own = pathlib.Path(os.environ["BRIM_RUN_DIR"], "steps.rank0.%d.jsonl" % os.getpid())
own.symlink_to("/dev/full")
"""
LIMIT = """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (3000, resource.RLIM_INFINITY))
"""
CHECKS = """
import time

def in_step(n):
    time.sleep(0.04)
    if n == 60:
        from _brim_hooks import recorder
        assert recorder.off and recorder.current is None, "the hooks still run"
        sys.exit(7)
"""


@pytest.mark.parametrize("trouble", [FULL, LIMIT], ids=["full", "limit"])
def test_a_full_disk_leaves_output_and_exit_code_as_they_were(
    hooked: Hooked, job: Callable[..., Path], tmp_path: Path, trouble: str
) -> None:
    """The device of the records is always full; or a limit comes in the middle of a line."""
    done = hooked(argv=[str(job(trouble + CHECKS, steps=60))])
    assert done.returncode == 7, done.stderr
    assert "Traceback" not in done.stderr
    if trouble is LIMIT:  # what was written before is whole
        (process,) = _processes(tmp_path)
        assert 0 < len(process.steps) < 60
        assert process.footer is None


def test_a_killed_job_leaves_all_steps_before_its_death(
    hooked: Hooked, job: Callable[..., Path], tmp_path: Path
) -> None:
    extra = """
        import signal, time
        def in_step(n):
            if n == 9:
                time.sleep(0.5)  # what was a moment ago is written
                os.kill(os.getpid(), signal.SIGKILL)
    """
    done = hooked(argv=[str(job(extra))])
    assert done.returncode == -signal.SIGKILL
    (process,) = _processes(tmp_path)
    assert sum(s.clock == "opt0" for s in process.steps) == 9
    assert process.footer is None


def test_a_hook_that_raises_is_never_felt_by_the_loop(
    hooked: Hooked, job: Callable[..., Path], tmp_path: Path
) -> None:
    """Every way into the recorder raises; the loss is what it is without hooks."""
    extra = """
        def broken(*args, **kwargs):
            raise RuntimeError("a bug in brim")
        if os.environ.get("BRIM_RUN_DIR"):
            from _brim_hooks import batches, recorder, window
            recorder.Recorder.tick = recorder.Recorder.add = broken
            batches.received = window.after_step = broken
    """
    script = job(extra)
    plain = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    done = hooked(argv=[str(script)], BRIM_DEBUG="")
    assert (done.returncode, done.stdout, done.stderr) == (0, plain.stdout, plain.stderr)


FORKS = """
def in_step(n):
    if n == 6:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
"""


def test_forks_modules_and_shells_are_covered_like_any_script(
    hooked: Hooked, job: Callable[..., Path], tmp_path: Path
) -> None:
    job(FORKS)
    shell = f"{sys.executable} -m train_job && exit 3"
    done = subprocess.run(
        ["sh", "-c", shell], capture_output=True, text=True, check=False, cwd=tmp_path,
        env={**os.environ, "BRIM_RUN_DIR": str(tmp_path / "runs"), "PYTHONPATH": str(INJECT)},
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    (process,) = _processes(tmp_path)  # the fork made none of its own
    assert sum(s.clock == "opt0" for s in process.steps) == 12
    assert process.footer is not None


def test_measuring_ends_after_the_steps_that_were_asked_for_and_the_job_goes_on(
    hooked: Hooked, job: Callable[..., Path], tmp_path: Path
) -> None:
    options = json.dumps({"steps": 8, "warmup": 2, "least_s": 0})
    done = hooked(argv=[str(job(steps=40))], BRIM_OPTIONS=options)
    assert done.returncode == 0, done.stderr
    (process,) = _processes(tmp_path)
    assert sum(s.clock == "opt0" for s in process.steps) == 10
    assert process.footer is not None
    assert process.footer.why == "measured 10 steps"


def test_two_ranks_under_torchrun_are_told_apart(
    hooked: Hooked, job: Callable[..., Path], tmp_path: Path
) -> None:
    extra = """
        import torch.distributed as dist
        dist.init_process_group("gloo")
        def in_step(n):
            dist.all_reduce(torch.ones(1))
    """
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = hooked(argv=[*launcher, str(job(extra))])
    assert done.returncode == 0, done.stderr
    found = _processes(tmp_path)
    trained = [p for p in found if p.steps and any(s.clock == "opt0" for s in p.steps)]
    assert sorted((p.header.rank, p.header.world) for p in trained) == [(0, 2), (1, 2)]
    assert all(sum(s.comm_n for s in p.steps) >= 11 for p in trained)
    assert len(found) == 2  # the launcher trains nothing
