"""The job's processes, and to whom a process on a device belongs.

Read from ``/proc`` alone.  A scan lists the folder and reads only the processes that are new since
the last one, so that a machine with thousands of processes costs a millisecond.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from brim.record.devices import Whose

PROC = Path("/proc")

# The inode of the kernel's first PID namespace (PROC_PID_INIT_INO in include/linux/proc_ns.h).
_INITIAL_PID_NAMESPACE = "pid:[4026531836]"


@dataclass(frozen=True, slots=True)
class Stat:
    """The fields of ``/proc/PID/stat`` that brim reads; times in clock ticks, rss in pages."""

    pid: int
    name: str
    state: str
    ppid: int
    utime: int
    stime: int
    threads: int
    rss: int


def read_stat(pid: int, *, proc: Path = PROC) -> Stat | None:
    """None when the process has gone."""
    data = read_small(f"{proc}/{pid}/stat")
    # the name stands in parentheses and may itself hold spaces and parentheses
    left, _, right = data.rpartition(b")")
    fields = right.split()
    if len(fields) < 22 or not all(fields[i].isdigit() for i in (1, 11, 12, 17, 21)):
        return None
    return Stat(
        pid=pid,
        name=left.partition(b"(")[2].decode(errors="replace"),
        state=fields[0].decode(errors="replace"),
        ppid=int(fields[1]),
        utime=int(fields[11]),
        stime=int(fields[12]),
        threads=int(fields[17]),
        rss=int(fields[21]),
    )


class JobTree:
    """The descendants of a process.

    A process stays a member when its parent ends (loader workers outlive a killed rank) until it
    ends itself.
    """

    def __init__(self, root: int | None, *, with_root: bool = False, proc: Path = PROC) -> None:
        """``root``: the process whose descendants are the job; None: there is no job.

        ``with_root``: the root is part of the job (it is not when it is brim itself).
        """
        self._root = root
        self._with_root = with_root
        self._proc = proc
        self._parents: dict[int, int] = {}
        self._members: set[int] = set()
        self._initial_namespace = _link(proc / "self/ns/pid") == _INITIAL_PID_NAMESPACE

    @property
    def pids(self) -> list[int]:
        """Members as of the last refresh, oldest number first."""
        return sorted(self._members)

    @property
    def has_job(self) -> bool:
        return self._root is not None

    def refresh(self) -> None:
        """Look at ``/proc`` again."""
        if self._root is None:
            return
        alive = {int(name) for name in _names(self._proc) if name.isdigit()}
        for gone in self._parents.keys() - alive:
            del self._parents[gone]
        for pid in alive - self._parents.keys():
            if (stat := read_stat(pid, proc=self._proc)) is not None:
                self._parents[pid] = stat.ppid
        self._members &= alive
        self._grow({self._root})

    def whose(self, pid: int) -> Whose:
        """To whom a process that NVML names belongs.

        Inside a container the driver may name processes of another PID namespace, whose numbers
        mean nothing here or mean somebody else; then only a process that is seen to hold the
        device open counts as another's.
        """
        if self._root is None:
            return "unknown"
        # brim itself opens no context: who has one in its process runs the job's code beside it
        if pid in self._members or pid == os.getpid():
            return "job"
        if not (self._proc / str(pid)).exists():
            return "unknown"
        return "other" if self._initial_namespace or self._holds_device(pid) else "unknown"

    def name(self, pid: int) -> str:
        """The command's name, or empty when it cannot be read."""
        return read_small(f"{self._proc}/{pid}/comm").decode(errors="replace").strip()

    def _grow(self, roots: set[int]) -> None:
        if self._with_root:
            self._members |= roots & self._parents.keys()
        known = roots | self._members
        while True:
            new = {p for p, parent in self._parents.items() if parent in known} - self._members
            new -= roots
            if not new:
                return
            self._members |= new
            known |= new

    def _holds_device(self, pid: int) -> bool:
        folder = self._proc / str(pid) / "fd"
        return any(_link(folder / name).startswith("/dev/nvidia") for name in _names(folder))


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)  # noqa: PTH208 - names only, in the cheapest way
    except OSError:
        return []


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - the text of pid:[…] is no path
    except OSError:
        return ""


def read_small(path: str, most: int = 4096) -> bytes:
    """The start of a file of ``/proc`` or ``/sys``, empty when it cannot be read.

    Without Python's file objects, which cost ten times as much: this runs many times a second.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, most)
    except OSError:
        return b""
    finally:
        os.close(fd)
