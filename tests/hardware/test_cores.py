"""Usable cores on machines laid out in a folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.hardware.cores import cpu_stat, parse_cpu_list, usable_cores

V2_MOUNT = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
V1_MOUNT = "31 25 0:28 {root} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct"


class Machine:
    """A fake root file system."""

    def __init__(self, root: Path, *, online: str = "0-63", allowed: str = "0-63") -> None:
        self.root = root
        self.write("sys/devices/system/cpu/online", online + "\n")
        self.write("proc/self/status", f"Name:\tpython\nCpus_allowed_list:\t{allowed}\n")

    def write(self, path: str, text: str) -> None:
        target = self.root / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def v2(self, path: str, **levels: str) -> None:
        """Place the process at ``path``; ``levels`` maps a folder name to its cpu.max."""
        self.write("proc/self/cgroup", f"0::{path}\n")
        self.write("proc/self/mountinfo", V2_MOUNT + "\n")
        folder = ""
        for part in path.strip("/").split("/"):
            folder = f"{folder}/{part}"
            self.write(f"sys/fs/cgroup{folder}/cpu.max", levels.get(part, "max 100000") + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_without_any_limit_all_64_cores_are_usable(machine: Machine) -> None:
    cores = usable_cores(root=machine.root)
    assert (cores.machine, cores.affinity, cores.quota, cores.usable) == (64, 64, None, 64.0)
    assert cores.reasons == () and not cores.limited


def test_a_mask_of_4_cores_on_a_64_core_machine_leaves_4(tmp_path: Path) -> None:
    cores = usable_cores(root=Machine(tmp_path, allowed="0-1,8,63").root)
    assert cores.usable == 4.0
    assert cores.reasons == ("the affinity mask allows 4 of 64 cores",)


def test_a_v2_quota_of_2_5_cores_holds_and_names_its_folder(machine: Machine) -> None:
    machine.v2("/kubepods/pod1/main", main="250000 100000")
    cores = usable_cores(root=machine.root)
    assert cores.quota == 2.5 and cores.usable == 2.5 and cores.whole == 2
    assert "2.5 cores" in cores.reasons[0] and "pod1/main" in cores.reasons[0]


def test_the_smallest_quota_of_all_ancestors_counts(machine: Machine) -> None:
    machine.v2("/kubepods/pod1/main", kubepods="max 100000", pod1="300000 100000", main="800000")
    assert usable_cores(root=machine.root).usable == 3.0


def test_a_quota_above_the_mask_is_no_limit(tmp_path: Path) -> None:
    machine = Machine(tmp_path, allowed="0-1")
    machine.v2("/a", a="1600000 100000")
    cores = usable_cores(root=machine.root)
    assert cores.usable == 2.0
    assert cores.reasons == ("the affinity mask allows 2 of 64 cores",)


def test_v1_in_a_container_reads_its_own_mount_though_proc_names_the_hosts_path(
    machine: Machine,
) -> None:
    machine.write("proc/self/cgroup", "4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n")
    machine.write("proc/self/mountinfo", V1_MOUNT.format(root="/docker/abc") + "\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "50000\n")
    assert usable_cores(root=machine.root).usable == 3.0


def test_v1_without_a_quota_says_minus_one_and_limits_nothing(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:cpu:/\n")
    machine.write("proc/self/mountinfo", V1_MOUNT.format(root="/") + "\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    assert usable_cores(root=machine.root).quota is None


def test_a_cgroup_path_outside_the_mount_falls_back_to_the_mount_itself(machine: Machine) -> None:
    machine.v2("/top", top="max 100000")
    machine.write("proc/self/cgroup", "0::/../../elsewhere\n")
    machine.write("sys/fs/cgroup/cpu.max", "400000 100000\n")
    assert usable_cores(root=machine.root).usable == 4.0


def test_a_process_by_its_pid(machine: Machine) -> None:
    machine.write("proc/77/status", "Cpus_allowed_list:\t5\n")
    assert usable_cores(77, root=machine.root).usable == 1.0


def test_a_process_that_has_gone_counts_as_the_whole_machine(machine: Machine) -> None:
    assert usable_cores(4242, root=machine.root).usable == 64.0


def test_throttling_counters_of_v2_are_in_seconds_and_subtract(machine: Machine) -> None:
    machine.v2("/a/b", a="max", b="200000 100000")
    stat = "usage_usec 5000000\nnr_periods 100\nnr_throttled 40\nthrottled_usec 1500000\n"
    machine.write("sys/fs/cgroup/a/b/cpu.stat", stat)
    first = cpu_stat(root=machine.root)
    assert first is not None
    assert (first.periods, first.throttled_periods, first.throttled_s) == (100, 40, 1.5)
    later = "usage_usec 7000000\nnr_periods 110\nnr_throttled 49\nthrottled_usec 1750000\n"
    machine.write("sys/fs/cgroup/a/b/cpu.stat", later)
    second = cpu_stat(root=machine.root)
    assert second is not None
    window = second.since(first)
    assert (window.periods, window.throttled_periods, window.usage_s) == (10, 9, 2.0)
    assert window.throttled_s == pytest.approx(0.25)


def test_throttling_counters_of_v1_are_in_nanoseconds(machine: Machine) -> None:
    machine.write("proc/self/cgroup", "4:cpu:/\n")
    machine.write("proc/self/mountinfo", V1_MOUNT.format(root="/") + "\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n")
    machine.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n")
    machine.write(
        "sys/fs/cgroup/cpu/cpu.stat", "nr_periods 9\nnr_throttled 3\nthrottled_time 2500000000\n"
    )
    stat = cpu_stat(root=machine.root)
    assert stat is not None and stat.throttled_s == 2.5 and stat.usage_s is None


def test_where_nothing_limits_there_are_no_throttling_counters(machine: Machine) -> None:
    machine.v2("/a", a="max 100000")
    machine.write("sys/fs/cgroup/a/cpu.stat", "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")
    assert cpu_stat(root=machine.root) is None


def test_on_this_machine_the_mask_is_what_the_kernel_says() -> None:
    assert usable_cores().affinity == len(os.sched_getaffinity(0))


@given(st.sets(st.integers(0, 300), min_size=1))
def test_any_set_of_cpus_survives_the_kernels_list_format(cpus: set[int]) -> None:
    assert parse_cpu_list(",".join(str(c) for c in sorted(cpus)) + "\n") == cpus
    low, high = min(cpus), max(cpus)
    assert parse_cpu_list(f"{low}-{high}") == set(range(low, high + 1))


@given(st.text(alphabet="0123456789-, \nx²", max_size=30))
def test_a_garbled_list_raises_nothing_and_yields_cpu_numbers(text: str) -> None:
    assert all(0 <= cpu <= 99_999 for cpu in parse_cpu_list(text))
