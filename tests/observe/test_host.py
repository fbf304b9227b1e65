"""Host figures from kernel counters laid out in a folder: rates, shares, and honest gaps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.observe.host import FIELDS, HostProbe
from brim.observe.processes import JobTree
from brim.record.devices import HostSample

HZ = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")


class Host:
    """A fake root with counters that a test turns."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for name in ("vda", "dm-0", "loop3"):
            (root / "sys/block" / name).mkdir(parents=True)
        self.write("sys/devices/system/cpu/online", "0-7\n")
        self.set(busy=0, iowait=0, read=0, received=0, stalled=0, swapped=0)

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def set(
        self, *, busy: int, iowait: int, read: int, received: int, stalled: int, swapped: int
    ) -> None:
        """Ticks, ticks, bytes, bytes, µs, pages."""
        self.write("proc/stat", f"cpu  {busy} 0 0 1000 {iowait} 0 0 0 0 0\ncpu0 1 2 3\n")
        disk = f"0 0 {read // 512} 0 0 0 {read // 1024} 0 0 0 0"
        rows = [f" 254 0 {name} {disk}" for name in ("vda", "dm-0", "loop3")]
        self.write("proc/diskstats", "\n".join(rows) + "\n")
        zeros = "0 0 0 0 0 0 0"
        net = f"  eth0: {received} {zeros} {received // 4} 0\n    lo: 99999999 {zeros} 9 0"
        self.write("proc/net/dev", f"Inter-| Receive\n face |bytes\n{net}\n")
        for name in ("cpu", "io", "memory"):
            self.write(
                f"proc/pressure/{name}",
                f"some avg10=0.00 total={stalled}\nfull avg10=0.00 total={stalled // 2}\n",
            )
        self.write("proc/vmstat", f"nr_free_pages 5\npswpin {swapped}\npswpout 0\n")
        self.write("proc/meminfo", "MemAvailable:  2048 kB\nCached:   1024 kB\n")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def _second(probe: HostProbe) -> HostSample:
    sample = probe.sample(t=2.0, mono=2.0, interval_s=2.0)
    assert sample is not None
    return sample


def _probe(host: Host) -> HostProbe:
    probe = HostProbe(JobTree(None), root=host.root)
    assert probe.sample(t=0.0, mono=0.0, interval_s=0.0) is None
    return probe


def test_two_seconds_of_counters_become_cores_shares_and_bytes_per_second(host: Host) -> None:
    probe = _probe(host)
    host.set(busy=3 * HZ, iowait=HZ, read=20_480_000, received=8000, stalled=500_000, swapped=100)
    sample = _second(probe)
    assert (sample.cpu, sample.iowait) == (1.5, 0.5)
    # dm-0 and loop3 show the same bytes again and are not counted
    assert sample.disk_read_bytes_s == 10_240_000
    assert sample.net_rx_bytes_s == 4000 and sample.net_tx_bytes_s == 1000
    assert sample.psi == {
        "cpu.some": 0.25, "io.some": 0.25, "io.full": 0.125,
        "memory.some": 0.25, "memory.full": 0.125,
    }  # fmt: skip
    assert sample.swap_in_bytes_s == 100 * PAGE / 2 and sample.swap_out_bytes_s == 0
    assert sample.memory_available_bytes == 2048 * 1024 and sample.page_cache_bytes == 1024 * 1024


def test_a_kernel_without_pressure_figures_says_so(host: Host) -> None:
    for name in ("cpu", "io", "memory"):
        (host.root / "proc/pressure" / name).unlink()
    sample = _second(_probe(host))
    assert not sample.psi and sample.absent["psi"] == "this kernel has no /proc/pressure"
    assert sample.throttled is None and sample.absent["throttled"] == "no CPU quota is set"


def test_without_disks_the_rate_is_absent_and_with_an_idle_one_it_is_zero(host: Host) -> None:
    assert _second(_probe(host)).disk_read_bytes_s == 0
    (host.root / "proc/diskstats").unlink()
    assert _second(_probe(host)).disk_read_bytes_s is None


def test_a_quota_that_ran_out_in_9_of_10_periods_is_a_throttled_share_of_0_9(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/\n")
    mount = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"
    host.write("proc/self/mountinfo", mount + "\n")
    host.write("sys/fs/cgroup/cpu.max", "200000 100000\n")
    stat = "usage_usec 1\nnr_periods {}\nnr_throttled {}\nthrottled_usec 5\n"
    host.write("sys/fs/cgroup/cpu.stat", stat.format(100, 0))
    probe = _probe(host)
    host.write("sys/fs/cgroup/cpu.stat", stat.format(110, 9))
    assert _second(probe).throttled == 0.9


def test_the_jobs_cpu_is_the_sum_of_its_processes_and_the_busiest_come_first(
    tmp_path: Path,
) -> None:
    host = Host(tmp_path)
    (tmp_path / "proc/self/ns").mkdir(parents=True)

    def stat(pid: int, ppid: int, ticks: int) -> None:
        tail = " ".join(["0"] * 9 + [str(ticks), "0"] + ["0"] * 4 + ["3", "0", "0", "0", "2"])
        host.write(f"proc/{pid}/stat", f"{pid} (w) R {ppid} {tail} 0\n")

    for pid in (10, 11, 12):
        stat(pid, 1 if pid == 10 else 10, 0)
    tree = JobTree(10, proc=tmp_path / "proc")
    tree.refresh()
    probe = HostProbe(tree, root=tmp_path)
    probe.sample(t=0.0, mono=0.0, interval_s=0.0)
    stat(11, 10, HZ)
    stat(12, 10, 2 * HZ)
    sample = _second(probe)
    assert sample.job_cpu == 1.5 and sample.job_processes == 2
    assert [(p.pid, p.cpu, p.state) for p in sample.processes] == [(12, 1.0, "R"), (11, 0.5, "R")]
    assert sample.processes[0].rss_bytes == 2 * PAGE and sample.processes[0].threads == 3


def test_on_this_machine_a_busy_loop_shows_in_the_machines_cores() -> None:
    import time

    probe = HostProbe(JobTree(None))
    begin = time.monotonic()
    probe.sample(t=0.0, mono=begin, interval_s=0.0)
    while time.monotonic() - begin < 0.3:
        pass
    sample = probe.sample(t=0.0, mono=0.0, interval_s=time.monotonic() - begin)
    assert sample is not None and sample.cpu is not None and sample.cpu > 0.5


def test_every_host_field_has_a_meaning() -> None:
    own = {"t", "mono", "interval_s", "absent", "job_processes", "processes"}
    assert set(HostSample.__struct_fields__) - own == set(FIELDS)
