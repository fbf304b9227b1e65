"""The host beside the devices: CPU, the job's processes, pressure, disk, network, page cache.

Everything is a difference of kernel counters over the interval between two samples; what a kernel
does not offer is absent with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brim.hardware.cores import CpuStat, cpu_stat, read_cpu_stat
from brim.observe.processes import JobTree, Stat, read_small, read_stat
from brim.record.devices import HostProcess, HostSample, Meaning

ROOT = Path("/")
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
SECTOR_BYTES = 512  # the unit of /proc/diskstats, whatever the disk's own sector size is

# Of a job with hundreds of loader workers the busiest are kept: the file stays small.
MAX_PROCESSES = 24

FIELDS = {
    "cpu": Meaning(unit="cores", what="busy cores of the machine", source="/proc/stat"),
    "iowait": Meaning(unit="cores", what="cores idle while a task waits for storage",
                      source="/proc/stat"),
    "job_cpu": Meaning(unit="cores", what="cores used by the job", source="/proc/PID/stat"),
    "throttled": Meaning(unit="share", what="of CFS periods, quota exhausted", source="cpu.stat"),
    "psi": Meaning(unit="share", what="of time, tasks stalled", source="/proc/pressure"),
    "disk_read_bytes_s": Meaning(unit="B/s", what="local disks; no network file system",
                                 source="/proc/diskstats"),
    "disk_write_bytes_s": Meaning(unit="B/s", what="local disks", source="/proc/diskstats"),
    "net_rx_bytes_s": Meaning(unit="B/s", what="all interfaces but lo", source="/proc/net/dev"),
    "net_tx_bytes_s": Meaning(unit="B/s", what="all interfaces but lo", source="/proc/net/dev"),
    "rdma_rx_bytes_s": Meaning(
        unit="B/s", what="all ports, InfiniBand and RoCE", source="/sys/class/infiniband"
    ),
    "rdma_tx_bytes_s": Meaning(
        unit="B/s", what="all ports, InfiniBand and RoCE", source="/sys/class/infiniband"
    ),
    "memory_available_bytes": Meaning(unit="B", what="free without swapping",
                                      source="/proc/meminfo"),
    "page_cache_bytes": Meaning(unit="B", what="file pages in memory", source="/proc/meminfo"),
    "swap_in_bytes_s": Meaning(unit="B/s", what="read back from swap", source="/proc/vmstat"),
    "swap_out_bytes_s": Meaning(unit="B/s", what="written to swap", source="/proc/vmstat"),
}  # fmt: skip

_RATES = (
    "disk_read", "disk_write", "net_rx", "net_tx", "rdma_rx", "rdma_tx", "swap_in", "swap_out",
)  # fmt: skip
_PSI = (("cpu", "some"), ("io", "some"), ("io", "full"), ("memory", "some"), ("memory", "full"))


@dataclass(frozen=True, slots=True)
class _Counters:
    """What the kernel counts since boot, at one moment."""

    busy_ticks: int
    iowait_ticks: int
    bytes: dict[str, int]
    """One of ``_RATES`` → bytes."""
    psi_us: dict[str, int]
    throttling: CpuStat | None
    processes: dict[int, Stat]


class HostProbe:
    """Samples the host; the first call only takes the starting counters."""

    def __init__(self, tree: JobTree, *, root: Path = ROOT) -> None:
        self._tree = tree
        self._root = root
        self._disks = _whole_disks(root)
        self._rdma = sorted((root / "sys/class/infiniband").glob("*/ports/*/counters"))
        # finding the cgroup means reading mount tables; its files only need to be found once
        found = cpu_stat(root=root)
        self._cgroup = Path(found.source) if found is not None else None
        self._last: _Counters | None = None

    def sample(self, *, t: float, mono: float, interval_s: float) -> HostSample | None:
        """The interval since the last call; None on the first."""
        now, before = self._count(), self._last
        self._last = now
        if before is None or interval_s <= 0:
            return None
        memory = _meminfo(self._root)
        absent = {} if now.psi_us else {"psi": "this kernel has no /proc/pressure"}
        if now.throttling is None:
            absent["throttled"] = "no CPU quota is set"
        per_tick = 1 / TICKS_PER_S / interval_s
        processes = _usage(now.processes, before.processes, per_tick)
        return HostSample(
            t=t,
            mono=mono,
            interval_s=interval_s,
            cpu=round((now.busy_ticks - before.busy_ticks) * per_tick, 2),
            iowait=round((now.iowait_ticks - before.iowait_ticks) * per_tick, 2),
            job_cpu=_total(processes) if self._tree.has_job else None,
            job_processes=len(now.processes) if self._tree.has_job else None,
            processes=sorted(processes, key=lambda p: -(p.cpu or 0.0))[:MAX_PROCESSES],
            throttled=_throttled(now.throttling, before.throttling),
            psi=_shares(now.psi_us, before.psi_us, interval_s),
            memory_available_bytes=memory.get("MemAvailable"),
            page_cache_bytes=memory.get("Cached"),
            absent=absent,
            **_rates(now.bytes, before.bytes, interval_s),
        )

    def _count(self) -> _Counters:
        busy, iowait = _cpu_ticks(self._root)
        stats = (read_stat(pid, proc=self._root / "proc") for pid in self._tree.pids)
        return _Counters(
            busy_ticks=busy,
            iowait_ticks=iowait,
            bytes={
                **_disk_bytes(self._root, self._disks),
                **_net_bytes(self._root),
                **_rdma_bytes(self._rdma),
                **_swap_bytes(self._root),
            },
            psi_us=_psi_us(self._root),
            throttling=None if self._cgroup is None else read_cpu_stat(self._cgroup),
            processes={s.pid: s for s in stats if s is not None},
        )


def _usage(now: dict[int, Stat], before: dict[int, Stat], per_tick: float) -> list[HostProcess]:
    return [_process(stat, before.get(pid), per_tick) for pid, stat in now.items()]


def _process(stat: Stat, before: Stat | None, per_tick: float) -> HostProcess:
    user = stat.utime - before.utime if before else None
    system = stat.stime - before.stime if before else None
    return HostProcess(
        pid=stat.pid,
        ppid=stat.ppid,
        name=stat.name,
        cpu=None if user is None or system is None else round((user + system) * per_tick, 3),
        system=None if system is None else round(system * per_tick, 3),
        state=stat.state,
        threads=stat.threads,
        rss_bytes=stat.rss * PAGE_BYTES,
    )


def _total(processes: list[HostProcess]) -> float:
    return round(sum(p.cpu for p in processes if p.cpu is not None), 2)


def _throttled(now: CpuStat | None, before: CpuStat | None) -> float | None:
    if now is None or before is None:
        return None
    window = now.since(before)
    return round(window.throttled_periods / window.periods, 4) if window.periods > 0 else 0.0


def _shares(now: dict[str, int], before: dict[str, int], interval_s: float) -> dict[str, float]:
    return {
        name: round(max(0, now[name] - before[name]) / 1e6 / interval_s, 4)
        for name in now.keys() & before.keys()
    }


def _rates(now: dict[str, int], before: dict[str, int], interval_s: float) -> dict[str, float]:
    return {
        f"{name}_bytes_s": round(max(0, now[name] - before[name]) / interval_s)
        for name in _RATES
        if name in now and name in before
    }


def _cpu_ticks(root: Path) -> tuple[int, int]:
    """(busy, iowait) of all cores; guest time is part of user time already."""
    first = _text(root / "proc/stat").partition("\n")[0].split()[1:]
    ticks = [int(v) for v in first] + [0] * 8
    user, nice, system, _idle, iowait, irq, softirq, steal = ticks[:8]
    return user + nice + system + irq + softirq + steal, iowait


def _whole_disks(root: Path) -> frozenset[str]:
    """Physical disks; loop, ram, zram, dm and md would count the same bytes twice."""
    virtual = ("loop", "ram", "zram", "dm-", "md", "sr", "fd", "nbd")
    try:
        names = [p.name for p in (root / "sys/block").iterdir()]
    except OSError:
        names = []
    return frozenset(n for n in names if not n.startswith(virtual))


def _disk_bytes(root: Path, disks: frozenset[str]) -> dict[str, int]:
    rows = [line.split() for line in _text(root / "proc/diskstats").splitlines()]
    mine = [r for r in rows if len(r) >= 10 and r[2] in disks]
    if not mine:
        return {}
    return {
        "disk_read": sum(int(r[5]) for r in mine) * SECTOR_BYTES,
        "disk_write": sum(int(r[9]) for r in mine) * SECTOR_BYTES,
    }


_PORT_UNIT = 4
"""``port_*_data`` counts in units of four bytes (InfiniBand architecture, PortCounters)."""


def _rdma_bytes(counters: list[Path]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, file in (("rdma_rx", "port_rcv_data"), ("rdma_tx", "port_xmit_data")):
        texts = [_text(folder / file).strip() for folder in counters]
        values = [int(text) for text in texts if text.isdigit()]
        if values:
            found[name] = _PORT_UNIT * sum(values)
    return found


def _net_bytes(root: Path) -> dict[str, int]:
    received = sent = 0
    lines = _text(root / "proc/net/dev").splitlines()[2:]
    for line in lines:
        name, _, values = line.partition(":")
        fields = values.split()
        if name.strip() != "lo" and len(fields) >= 9:
            received += int(fields[0])
            sent += int(fields[8])
    return {"net_rx": received, "net_tx": sent} if lines else {}


def _swap_bytes(root: Path) -> dict[str, int]:
    pairs = dict(_pairs(_text(root / "proc/vmstat")))
    if "pswpin" not in pairs or "pswpout" not in pairs:
        return {}
    return {"swap_in": pairs["pswpin"] * PAGE_BYTES, "swap_out": pairs["pswpout"] * PAGE_BYTES}


def _meminfo(root: Path) -> dict[str, int]:
    text = _text(root / "proc/meminfo").replace(":", "")
    return {name: kib * 1024 for name, kib in _pairs(text)}


def _pairs(text: str) -> Iterator[tuple[str, int]]:
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[1].isdigit():
            yield fields[0], int(fields[1])


def _psi_us(root: Path) -> dict[str, int]:
    found = {}
    for resource, kind in _PSI:
        for line in _text(root / "proc/pressure" / resource).splitlines():
            if line.startswith(kind) and (total := line.rpartition("total=")[2]).isdigit():
                found[f"{resource}.{kind}"] = int(total)
    return found


def _text(path: Path) -> str:
    return read_small(str(path), 65536).decode(errors="replace")
