"""A process that notices when a run hangs: writes where it stands, then ends it.

A thread could not: a call into CUDA or NCCL that never returns may hold the interpreter's lock.
The trainer writes into a small shared file what it does and since when; the watchdog reads it.
When that is too long ago, the watchdog asks the trainer for the stacks of all its threads
(faulthandler answers in C, whatever the interpreter does), adds what else tells a cause, and kills
it a few seconds later.  Each rank has a watchdog of its own: one that hangs stops the others, and
then all leave their stacks.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import IO

DUMP = signal.SIGUSR2
GRACE_S = 3.0
"""Between asking for the stacks and the end."""
_BEAT = struct.Struct("ddqq")  # armed since or 0, phase since (both monotonic), phase, steps done
_QUERY = (
    "index,name,utilization.gpu,memory.used,clocks_event_reasons.active,"
    "ecc.errors.uncorrected.volatile.total"
)


class Phase(IntEnum):
    """What a rank does."""

    BETWEEN = 0
    ROWS = 1
    STEP = 2
    EVALUATION = 3
    SAVING = 4

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = (
    "between two steps", "waiting for rows", "in a step", "evaluating", "starting a checkpoint",
)  # fmt: skip


class Watchdog:
    """Beside the process that makes it; call :meth:`beat` as it goes.

    ``timeout_s``: a step, an evaluation or a checkpoint may take this long.  The end of the first
    step starts the watch, so compilation is not under it.
    """

    def __init__(self, folder: Path, timeout_s: float, rank: int = 0) -> None:
        self.stacks = folder / f"hang-stacks.rank{rank}.txt"
        self._file: IO[bytes] = (folder / f"heartbeat.rank{rank}").open("w+b")
        self._file.write(bytes(_BEAT.size))
        self._file.flush()
        self._map = mmap.mmap(self._file.fileno(), _BEAT.size)
        self._armed = 0.0
        self._dump = self.stacks.open("w")
        faulthandler.register(DUMP, self._dump, all_threads=True)
        command = [sys.executable, "-S", "-E", __file__]
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), self._file.name, str(self.stacks), str(timeout_s)],
            stdin=subprocess.DEVNULL,
        )

    def beat(self, phase: Phase, step: int) -> None:
        """``phase`` begins after ``step`` steps."""
        now = time.monotonic()
        if phase is Phase.BETWEEN:
            self._armed = now
        _BEAT.pack_into(self._map, 0, self._armed, now, phase, step)

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


def watch(pid: int, heartbeat: Path, stacks: Path, timeout_s: float) -> str:
    """Until ``pid`` is gone ("gone") or had to be killed ("killed")."""
    with heartbeat.open("rb") as f:
        seen = mmap.mmap(f.fileno(), _BEAT.size, access=mmap.ACCESS_READ)
    while os.getppid() == pid:
        armed, since, phase, step = _BEAT.unpack(seen[: _BEAT.size])
        if armed and time.monotonic() - since > timeout_s:
            sys.stderr.write(
                f"brim: {Phase(phase).words} for {timeout_s:.0f} s after {step} steps; the stacks "
                f"are in {stacks}, the run is ended\n"
            )
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, DUMP)
                _dump_collectives(heartbeat)
                time.sleep(GRACE_S)
                _describe(heartbeat, stacks)
                os.kill(pid, signal.SIGKILL)
            return "killed"
        time.sleep(min(1.0, timeout_s / 4))
    return "gone"


def _describe(heartbeat: Path, stacks: Path) -> None:
    """Add what the ranks of this host were doing, and the state of its GPUs."""
    with contextlib.suppress(OSError), stacks.open("a") as f:
        f.write("\n" + "\n".join(doing(heartbeat.parent)) + "\n")
        f.flush()
        program = shutil.which("nvidia-smi")
        if program:
            command = [program, f"--query-gpu={_QUERY}", "--format=csv"]
            with contextlib.suppress(subprocess.TimeoutExpired):  # a GPU that fell off the bus
                subprocess.run(command, stdout=f, stderr=f, timeout=10, check=False)


def doing(folder: Path) -> Iterator[str]:
    """A line for each rank that left a heartbeat here; who is behind the others is the cause."""
    now = time.monotonic()
    for path in sorted(folder.glob("heartbeat.rank*"), key=lambda p: int(p.suffix[5:])):
        data = path.read_bytes()
        if len(data) == _BEAT.size:
            _, since, phase, step = _BEAT.unpack(data)
            what = f"{Phase(phase).words} for {now - since:.0f} s, after {step} steps"
            yield f"{path.suffix[1:]}: {what}"


def _dump_collectives(heartbeat: Path) -> None:
    """Ask for torch's flight recorder where the user has switched it on, through its pipe."""
    pipe = os.environ.get("TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    if pipe:
        with contextlib.suppress(OSError):  # nobody reads it, say
            fd = os.open(f"{pipe}{heartbeat.suffix[5:]}.pipe", os.O_WRONLY | os.O_NONBLOCK)
            os.write(fd, b"1")
            os.close(fd)


if __name__ == "__main__":
    watch(int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), float(sys.argv[4]))
