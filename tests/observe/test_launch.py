"""Starting the user's command and staying out of its way: streams, signals, exit codes, paths."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.waiting import until

from brim.errors import InputError
from brim.observe import launch
from brim.observe.launch import INJECT, Options, environment, resolve


def _run(*command: str) -> int:
    return launch.run(command, dict(os.environ))


# ---------------------------------------------------------------------------------- the command


def test_a_program_is_found_on_the_path_and_its_arguments_are_left_alone() -> None:
    assert resolve(["sh", "-c", "a b", "--", "*"])[1:] == ["-c", "a b", "--", "*"]
    assert Path(resolve(["sh"])[0]).is_absolute()


@pytest.mark.parametrize("name", ["no-such-program-anywhere", "/nowhere/python", "./train.py"])
def test_a_program_that_is_not_there_is_named_before_anything_is_made(name: str) -> None:
    with pytest.raises(InputError, match="no such command") as error:
        resolve([name])
    assert name in str(error.value)
    assert len(str(error.value).splitlines()) == 2


def test_a_script_without_a_first_line_says_what_is_missing(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text("python train.py\n")
    script.chmod(0o755)
    with pytest.raises(InputError, match="cannot be run") as error:
        _run(str(script))
    assert f"bash {script}" in error.value.hint


# ---------------------------------------------------------------------------------- environment


def test_the_users_own_path_is_kept_behind_the_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"/mine:{tmp_path}")
    monkeypatch.setenv("MINE", "1")
    env = environment(tmp_path, Options(steps=7))
    assert env["PYTHONPATH"] == f"{INJECT}:/mine:{tmp_path}"
    assert env["MINE"] == "1"
    assert env["BRIM_RUN_DIR"] == str(tmp_path)
    assert json.loads(env["BRIM_OPTIONS"])["steps"] == 7


def test_without_a_path_of_the_users_own_nothing_else_is_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert environment(tmp_path, Options())["PYTHONPATH"] == str(INJECT)


def test_a_relative_run_directory_is_found_by_a_job_that_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert environment(Path("runs"), Options())["BRIM_RUN_DIR"] == str(tmp_path / "runs")


def test_a_warm_up_that_was_not_asked_for_is_left_to_the_hooks() -> None:
    assert "warmup" not in json.loads(Options().encoded())
    assert json.loads(Options(warmup=0).encoded())["warmup"] == 0


# ---------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -TERM $$", 143), ("kill -9 $$", 137)],
)
def test_the_exit_code_is_the_jobs(script: str, code: int) -> None:
    assert _run("sh", "-c", script) == code


def test_streams_and_directory_are_the_jobs_own(tmp_path: Path) -> None:
    command = ["sh", "-c", "cat; pwd; echo e >&2"]
    program = f"from brim.observe import launch; launch.run({command}, {{}})"
    done = subprocess.run(
        [sys.executable, "-c", program], input="in\n", capture_output=True, text=True, check=False,
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == (f"in\n{tmp_path}\n", "e\n")


def test_a_call_from_another_thread_works_without_handlers() -> None:
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(_run("sh", "-c", "exit 4")))
    thread.start()
    thread.join()
    assert codes == [4]


def test_handlers_are_as_they_were_afterwards() -> None:
    before = signal.getsignal(signal.SIGTERM)
    _run("true")
    assert signal.getsignal(signal.SIGTERM) is before


# ---------------------------------------------------------------------------------- signals

BRIM = """
import os, sys
from brim.observe import launch
sys.exit(launch.run(sys.argv[1:], dict(os.environ)))
"""

JOB = """
import signal, sys, time
def told(number, frame):
    print("told", number, flush=True)
    sys.exit(40 + number)
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT):
    signal.signal(number, told)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def brim() -> Iterator[subprocess.Popen[str]]:
    """A process that runs the job; in a session of its own, as under a scheduler."""
    process = subprocess.Popen(
        [sys.executable, "-c", BRIM, sys.executable, "-c", JOB], stdout=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    yield process
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_to_brim_reaches_the_job_which_decides(
    brim: subprocess.Popen[str], number: signal.Signals
) -> None:
    brim.send_signal(number)
    out, _ = brim.communicate(timeout=20)
    assert out == f"told {int(number)}\n"
    assert brim.returncode == 40 + number


def test_brim_waits_for_a_job_that_ignores_the_signal(brim: subprocess.Popen[str]) -> None:
    brim.send_signal(signal.SIGWINCH)
    time.sleep(0.2)
    assert brim.poll() is None


def test_a_signal_that_comes_before_the_job_is_passed_on_when_it_starts() -> None:
    relay = launch._Relay()
    relay(signal.SIGTERM, None)
    with subprocess.Popen(["sleep", "60"]) as child:
        relay.attach(child)
        assert child.wait(10) == -signal.SIGTERM


# ---------------------------------------------------------------------------------- stop


def _runs(pid: int) -> bool:
    """Orphans of a test have no parent that would reap them in a container."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_stopping_ends_the_whole_tree_and_not_the_shell_alone(tmp_path: Path) -> None:
    stop = threading.Event()
    pids = tmp_path / "pids"
    script = f"sleep 60 & sleep 61 & jobs -p > {pids}; wait"

    def stop_when_both_run() -> None:
        until(lambda: pids.exists() and len(pids.read_text().split()) == 2)
        stop.set()

    threading.Thread(target=stop_when_both_run).start()
    code = launch.run(["sh", "-c", script], dict(os.environ), stop)
    assert code == 128 + signal.SIGTERM
    until(lambda: not any(_runs(int(pid)) for pid in pids.read_text().split()))


def test_a_job_that_ends_before_it_is_stopped_keeps_its_exit_code() -> None:
    assert launch.run(["sh", "-c", "exit 5"], dict(os.environ), threading.Event()) == 5
