"""How many cores a process may really use: affinity mask ∩ cgroup quota.

``os.cpu_count()`` counts the machine.  Inside a container, under a scheduler or behind
``taskset`` a process has less, and a loader sized by the machine fights itself.  Two limits hold:

* the affinity mask (``Cpus_allowed_list``; cpusets are already folded into it by the kernel),
* CPU bandwidth: ``cpu.max`` (cgroup v2) or ``cpu.cfs_quota_us / cpu.cfs_period_us`` (v1), where
  each ancestor's limit holds as well, so the smallest one counts.

Every reader takes the file system's root, so that a test can lay out any machine in a folder.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")

# five digits: the kernel's own limit is 8192 CPUs
_CPU_RANGE = re.compile(r"(?:^|,)\s*([0-9]{1,5})(?:-([0-9]{1,5}))?(?=\s*(?:,|$))")


@dataclass(frozen=True, kw_only=True, slots=True)
class Cores:
    """The cores of a process, and what limits them."""

    machine: int
    """Cores that are online."""
    affinity: int
    """Cores in the process's mask."""
    quota: float | None
    """CPU seconds per second that the cgroup grants; None: no limit."""
    usable: float
    """The smaller of the two: what threads of the process can get at most, in cores."""
    reasons: tuple[str, ...]
    """One sentence per limit that holds; empty when the whole machine is usable."""

    @property
    def limited(self) -> bool:
        return self.usable < self.machine

    @property
    def whole(self) -> int:
        """Processes that can run at the same time: at least one."""
        return max(1, int(self.usable))


@dataclass(frozen=True, kw_only=True, slots=True)
class CpuStat:
    """CPU bandwidth control of a cgroup since its creation; subtract two to get a window."""

    periods: int
    """Enforcement periods in which a task was runnable."""
    throttled_periods: int
    """Periods in which the quota ran out."""
    throttled_s: float
    """Time in which runnable tasks were not let run, summed over the cgroup's CPUs, in seconds."""
    usage_s: float | None
    """CPU time used, in seconds; None under v1, which keeps it in another controller."""
    source: str
    """The file."""

    def since(self, earlier: CpuStat) -> CpuStat:
        """The counters of the window from ``earlier`` to here."""
        usage = (
            None
            if self.usage_s is None or earlier.usage_s is None
            else self.usage_s - earlier.usage_s
        )
        return CpuStat(
            periods=self.periods - earlier.periods,
            throttled_periods=self.throttled_periods - earlier.throttled_periods,
            throttled_s=self.throttled_s - earlier.throttled_s,
            usage_s=usage,
            source=self.source,
        )


def usable_cores(pid: int | None = None, *, root: Path = ROOT) -> Cores:
    """The cores that process ``pid`` (default: the caller) may use.

    A process that has gone, or a file that cannot be read, limits nothing: the machine counts.
    """
    machine = _online(root)
    affinity = _affinity(pid, root) or machine
    limits = [(quota, folder) for folder, quota in _quotas(pid, root) if quota is not None]
    quota, folder = min(limits, default=(None, None))
    reasons = []
    if affinity < machine:
        reasons.append(f"the affinity mask allows {affinity} of {machine} cores")
    if quota is not None and quota < affinity:
        reasons.append(f"the cgroup quota grants {quota:g} cores ({folder})")
    usable = float(affinity) if quota is None else min(float(affinity), quota)
    return Cores(
        machine=machine, affinity=affinity, quota=quota, usable=usable, reasons=tuple(reasons)
    )


def cpu_stat(pid: int | None = None, *, root: Path = ROOT) -> CpuStat | None:
    """Throttling counters of the cgroup whose quota binds ``pid``; None where nothing limits it.

    Of several limited ancestors the one that throttled longest is returned.
    """
    found = [
        stat
        for folder, quota in _quotas(pid, root)
        if quota is not None and (stat := read_cpu_stat(folder / "cpu.stat")) is not None
    ]
    return max(found, key=lambda s: s.throttled_s, default=None)


def parse_cpu_list(text: str) -> set[int]:
    """The kernel's list format: ``0-3,8,10-11`` → ``{0, 1, 2, 3, 8, 10, 11}``."""
    cpus: set[int] = set()
    for first, last in _CPU_RANGE.findall(text):
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def _online(root: Path) -> int:
    listed = parse_cpu_list(_text(root / "sys/devices/system/cpu/online"))
    return len(listed) or os.cpu_count() or 1


def _affinity(pid: int | None, root: Path) -> int:
    for line in _text(_proc(pid, root) / "status").splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return len(parse_cpu_list(line.partition(":")[2]))
    return 0


def _proc(pid: int | None, root: Path) -> Path:
    return root / "proc" / ("self" if pid is None else str(pid))


def _quotas(pid: int | None, root: Path) -> Iterator[tuple[Path, float | None]]:
    """Each cgroup folder of the process from the leaf up, with its own CPU limit."""
    for folder, top in _cpu_folders(pid, root):
        while True:
            yield folder, _quota(folder)
            if folder == top:
                break
            folder = folder.parent


def _cpu_folders(pid: int | None, root: Path) -> Iterator[tuple[Path, Path]]:
    """(the process's cgroup, the mount point) in each hierarchy that can hold a CPU limit."""
    mounts = list(_cgroup_mounts(root))
    for line in _text(_proc(pid, root) / "cgroup").splitlines():
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        v2 = number == "0" and not controllers
        if not v2 and "cpu" not in controllers.split(","):
            continue
        for kind, options, mount_root, mount_point in mounts:
            if kind == "cgroup2" if v2 else (kind == "cgroup" and "cpu" in options):
                top = root / mount_point.lstrip("/")
                yield _inside(top, path, mount_root), top


def _inside(top: Path, path: str, mount_root: str) -> Path:
    """Where cgroup ``path`` lies below the mount ``top``.

    A container often sees its own cgroup mounted as the top while ``/proc/self/cgroup`` names the
    host's path; then the mount's root field is a prefix of that path, or the path is outside.
    """
    relative = path.removeprefix(mount_root.rstrip("/")) if path.startswith(mount_root) else ""
    folder = top / relative.lstrip("/")
    return folder if ".." not in folder.parts and folder.is_dir() else top


def _cgroup_mounts(root: Path) -> Iterator[tuple[str, list[str], str, str]]:
    """(type, superblock options, root, mount point) from mountinfo; see proc(5)."""
    for line in _text(root / "proc/self/mountinfo").splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if separator and len(fields) >= 5 and len(tail) >= 3 and tail[0].startswith("cgroup"):
            yield tail[0], tail[2].split(","), fields[3], fields[4]


def _quota(folder: Path) -> float | None:
    """The limit set on this very cgroup, in cores."""
    if (text := _text(folder / "cpu.max")) and not text.startswith("max"):
        quota, _, period = text.partition(" ")
        return _ratio(quota, period.strip() or "100000")
    quota = _text(folder / "cpu.cfs_quota_us").strip()
    if quota and not quota.startswith("-"):
        return _ratio(quota, _text(folder / "cpu.cfs_period_us").strip())
    return None


def _ratio(quota: str, period: str) -> float | None:
    if quota.isdigit() and period.isdigit() and int(period) > 0:
        return int(quota) / int(period)
    return None


def read_cpu_stat(source: Path) -> CpuStat | None:
    """The counters of one ``cpu.stat`` file; None where it holds none."""
    pairs = (line.split() for line in _text(source).splitlines())
    values = {p[0]: int(p[1]) for p in pairs if len(p) == 2 and p[1].isdigit()}
    if "nr_periods" not in values:
        return None
    # v2 counts throttling in µs, v1 in ns
    throttled = (
        values["throttled_usec"] / 1e6
        if "throttled_usec" in values
        else values.get("throttled_time", 0) / 1e9
    )
    return CpuStat(
        periods=values["nr_periods"],
        throttled_periods=values.get("nr_throttled", 0),
        throttled_s=throttled,
        usage_s=values["usage_usec"] / 1e6 if "usage_usec" in values else None,
        source=str(source),
    )


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
