"""A process that notices when a run hangs: writes where it stands, then ends it.

A thread could not: a call into CUDA or NCCL that never returns may hold the interpreter's lock.
The trainer writes the time of its last step into a small shared file; the watchdog reads it.  When
it is too old, the watchdog asks the trainer for the stacks of all its threads (faulthandler answers
in C, whatever the interpreter does) and kills it a few seconds later.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

DUMP = signal.SIGUSR2
GRACE_S = 3.0
"""Between asking for the stacks and the end."""


class Watchdog:
    """Beside the process that makes it; call :meth:`beat` after each step.

    ``timeout_s``: a step, an evaluation or a checkpoint may take this long.  The first beat starts
    the watch, so compilation is not under it.
    """

    def __init__(self, folder: Path, timeout_s: float) -> None:
        self.stacks = folder / "hang-stacks.txt"
        self._file: IO[bytes] = (folder / "heartbeat").open("w+b")
        self._file.write(struct.pack("d", 0.0))
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), 8)
        self._dump = self.stacks.open("w")
        faulthandler.register(DUMP, self._dump, all_threads=True)
        command = [sys.executable, "-S", "-E", __file__]
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), str(folder / "heartbeat"), str(timeout_s)],
            stdin=subprocess.DEVNULL,
        )

    def beat(self) -> None:
        struct.pack_into("d", self._map, 0, time.monotonic())

    def close(self) -> None:
        """End the watch; a run that did not hang leaves no trace of it."""
        self._process.kill()
        self._process.wait()
        faulthandler.unregister(DUMP)
        self._dump.close()
        self._map.close()
        self._file.close()
        Path(self._file.name).unlink(missing_ok=True)
        if self.stacks.stat().st_size == 0:
            self.stacks.unlink()


def watch(pid: int, heartbeat: Path, timeout_s: float) -> str:
    """Until ``pid`` is gone ("gone") or had to be killed ("killed")."""
    with heartbeat.open("rb") as f:
        seen = mmap.mmap(f.fileno(), 8, access=mmap.ACCESS_READ)
    while os.getppid() == pid:
        (last,) = struct.unpack("d", seen[:8])
        if last and time.monotonic() - last > timeout_s:
            sys.stderr.write(
                f"brim: no step for {timeout_s:.0f} s; the stacks are in "
                f"{heartbeat.with_name('hang-stacks.txt')}, the run is ended\n"
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, DUMP)
                time.sleep(GRACE_S)
                os.kill(pid, signal.SIGKILL)
            return "killed"
        time.sleep(min(1.0, timeout_s / 4))
    return "gone"


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]))
