from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brim.train.watchdog import Phase, Watchdog, doing

PROGRAM = """
import ctypes, os, sys, time
from pathlib import Path
from brim.train.watchdog import Phase, Watchdog
dog = Watchdog(Path(sys.argv[1]), 1.0)
for _ in range(3):
    dog.beat(Phase.BETWEEN, 3)
    time.sleep(0.1)
print("beaten", flush=True)
{then}
"""


def child(folder: Path, then: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("{then}", then), str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("then", "function"),
    [
        ("def asleep():\n    time.sleep(100)\nasleep()", "asleep"),
        # the lock of the interpreter is held for good: no thread of it could act
        (
            "def in_c():\n    while True: ctypes.PyDLL(None).sleep(100)\nin_c()",
            "in_c",
        ),
    ],
    ids=["sleeping", "stuck in C with the lock held"],
)
def test_a_run_that_hangs_is_ended_and_leaves_its_stacks(
    then: str, function: str, tmp_path: Path
) -> None:
    started = time.monotonic()
    done = child(tmp_path, then)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert time.monotonic() - started < 30
    assert f"in {function}" in (tmp_path / "hang-stacks.rank0.txt").read_text()
    assert "between two steps for 1 s after 3 steps" in done.stderr
    assert "rank0: between two steps for" in (tmp_path / "hang-stacks.rank0.txt").read_text()


def test_a_run_that_goes_on_is_left_alone_and_nothing_remains(tmp_path: Path) -> None:
    done = child(
        tmp_path,
        "for _ in range(20):\n    dog.beat(Phase.BETWEEN, 3)\n    time.sleep(0.1)\ndog.close()",
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir()) == []


def test_before_the_first_beat_nothing_is_watched(tmp_path: Path) -> None:
    dog = Watchdog(tmp_path, 0.2)
    time.sleep(1.0)
    assert dog._process.poll() is None
    dog.close()


def test_the_watchdog_ends_with_its_run_however_that_ends(tmp_path: Path) -> None:
    done = child(tmp_path, "print(dog._process.pid, flush=True)\nos._exit(1)")
    pid = int(done.stdout.split()[-1])
    for _ in range(50):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "Z":
            return
        time.sleep(0.1)
    pytest.fail("the watchdog outlives its run")


def test_each_rank_says_what_it_does_so_the_one_behind_can_be_told(tmp_path: Path) -> None:
    first, second = Watchdog(tmp_path, 60.0, 0), Watchdog(tmp_path, 60.0, 1)
    first.beat(Phase.STEP, 8)
    second.beat(Phase.ROWS, 7)
    assert list(doing(tmp_path)) == [
        "rank0: in a step for 0 s, after 8 steps",
        "rank1: waiting for rows for 0 s, after 7 steps",
    ]
    first.close()
    second.close()


def test_a_phase_before_the_first_step_has_ended_starts_no_watch(tmp_path: Path) -> None:
    program = PROGRAM.split("for _")[0] + "dog.beat(Phase.STEP, 0)\ntime.sleep(2.5)\ndog.close()"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_flight_recorder_is_asked_where_it_is_switched_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCH_NCCL_DEBUG_INFO_PIPE_FILE", str(tmp_path / "recorder"))
    pipe = tmp_path / "recorder0.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    done = child(tmp_path, "time.sleep(100)")
    assert done.returncode == -signal.SIGKILL
    assert os.read(reader, 10) == b"1"
    os.close(reader)
