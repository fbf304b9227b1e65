"""One run of a command: until it ends, has been measured, or gives no sign of life any more.

The job has a session of its own and its output goes to a file: dozens of runs would bury the
ladder, and a Ctrl-C is brim's to answer, by ending the job and all below it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import psutil

from brim.errors import InputError

POLL_S: Final = 0.2
GRACE_S: Final = 5.0
"""Between SIGTERM and SIGKILL; what is measured is written by then."""


@dataclass(frozen=True, slots=True)
class End:
    """How a run ended; ``code`` is the exit code, 128 + n for signal n, None when brim ended it."""

    how: Literal["exited", "measured", "hung"]
    code: int | None


def run(
    command: Sequence[str],
    env: Mapping[str, str],
    log: Path,
    *,
    measured: Callable[[], bool],
    progress: Callable[[], object],
    patience_s: float,
) -> End:
    """Run to the first of: its end, ``measured()``, or ``patience_s`` without a new ``progress()``.

    Nothing of the job is left running, also when this is interrupted.  Raises
    :class:`InputError` when the program cannot be started.
    """
    with log.open("wb") as output:
        try:
            child = subprocess.Popen(
                command, env=dict(env), stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise InputError(f"{command[0]}: cannot be run ({error.strerror})") from None
        try:
            return _watch(child, measured, progress, patience_s)
        finally:
            _end_session(child)


def _watch(
    child: subprocess.Popen[bytes],
    measured: Callable[[], bool],
    progress: Callable[[], object],
    patience_s: float,
) -> End:
    seen, since = progress(), time.monotonic()
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(POLL_S)
            return End("exited", code if code >= 0 else 128 - code)
        if measured():
            return End("measured", None)
        now = progress()
        if now != seen:
            seen, since = now, time.monotonic()
        elif time.monotonic() - since > patience_s:
            return End("hung", None)


def _end_session(child: subprocess.Popen[bytes]) -> None:
    """SIGTERM to all of the job, and after a while SIGKILL to what is left of it.

    A launcher that ends leaves its ranks and their loader workers; the session finds them.
    """
    ended: set[int] = set()
    for number, patience_s in ((signal.SIGTERM, GRACE_S), (signal.SIGKILL, GRACE_S)):
        deadline = time.monotonic() + patience_s
        while (alive := _alive(child)) and time.monotonic() < deadline:
            for process in alive:
                if process.pid not in ended:
                    with contextlib.suppress(psutil.NoSuchProcess):
                        process.send_signal(number)
                    ended.add(process.pid)
            child.poll()
            time.sleep(0.05)
        ended.clear()
    child.wait()


def _alive(child: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """Processes of the job: its session, and what is below it in another one."""
    found: dict[int, psutil.Process] = {}
    for process in psutil.process_iter():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == child.pid:
                found[process.pid] = process
    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(child.pid)
        found.update((p.pid, p) for p in [root, *root.children(recursive=True)])
    return [p for p in found.values() if _runs(p)]


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
