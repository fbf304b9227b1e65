"""The job's tree and the owner of a process on a device, on a /proc laid out in a folder."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.observe.processes import JobTree, read_stat

INITIAL = "pid:[4026531836]"


class Proc:
    """A fake /proc."""

    def __init__(self, root: Path, namespace: str = INITIAL) -> None:
        self.root = root
        (root / "self/ns").mkdir(parents=True)
        (root / "self/ns/pid").symlink_to(namespace)

    def add(self, pid: int, ppid: int, name: str = "python") -> None:
        (self.root / str(pid)).mkdir()
        numbers = [0] * 17
        fields = f"{pid} ({name}) S {ppid} " + " ".join(
            ["0"] * 9 + ["250", "50"] + ["0"] * 4 + ["7", "0", "0", "0", "1024"] + ["0"] * 20
        )
        assert len(numbers) == 17
        (self.root / str(pid) / "stat").write_text(fields + "\n")
        (self.root / str(pid) / "comm").write_text(name + "\n")

    def remove(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    made = Proc(tmp_path)
    for pid, ppid in [(1, 0), (10, 1), (20, 10), (30, 20), (31, 20), (99, 1)]:
        made.add(pid, ppid)
    return made


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields(proc: Proc) -> None:
    proc.add(77, 1, name="a) S 5 (b")
    stat = read_stat(77, proc=proc.root)
    assert stat is not None
    assert (stat.name, stat.state, stat.ppid) == ("a) S 5 (b", "S", 1)
    assert (stat.utime, stat.stime, stat.threads) == (250, 50, 7)


def test_grandchildren_are_of_the_job_and_brim_itself_is_not(proc: Proc) -> None:
    tree = JobTree(10, proc=proc.root)
    tree.refresh()
    assert tree.pids == [20, 30, 31]
    with_root = JobTree(10, with_root=True, proc=proc.root)
    with_root.refresh()
    assert with_root.pids == [10, 20, 30, 31]


def test_a_worker_whose_parent_died_stays_in_the_job_and_a_dead_one_leaves(proc: Proc) -> None:
    tree = JobTree(10, proc=proc.root)
    tree.refresh()
    proc.remove(20)
    tree.refresh()
    assert tree.pids == [30, 31]
    proc.remove(30)
    proc.add(32, 31)
    tree.refresh()
    assert tree.pids == [31, 32]


def test_on_the_host_a_foreign_process_is_anothers(proc: Proc) -> None:
    tree = JobTree(10, proc=proc.root)
    tree.refresh()
    assert [tree.whose(pid) for pid in (30, 99, 4242)] == ["job", "other", "unknown"]


def test_in_a_container_a_number_proves_nothing_unless_the_process_holds_the_device(
    tmp_path: Path,
) -> None:
    proc = Proc(tmp_path, namespace="pid:[4026532201]")
    for pid, ppid in [(1, 0), (10, 1), (20, 10), (99, 1)]:
        proc.add(pid, ppid)
    tree = JobTree(10, proc=proc.root)
    tree.refresh()
    assert tree.whose(99) == "unknown"
    (proc.root / "99/fd").mkdir()
    (proc.root / "99/fd/3").symlink_to("/dev/nvidia0")
    assert tree.whose(99) == "other" and tree.whose(20) == "job"


def test_without_a_job_nothing_is_claimed(proc: Proc) -> None:
    tree = JobTree(None, proc=proc.root)
    tree.refresh()
    assert tree.pids == [] and tree.whose(20) == "unknown" and not tree.has_job


def test_a_real_grandchild_is_found() -> None:
    script = (
        "import subprocess; p = subprocess.Popen(['sleep', '30'])\n"
        "print(p.pid, flush=True); p.wait()"
    )
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        tree = JobTree(os.getpid())
        tree.refresh()
        assert {child.pid, grandchild} <= set(tree.pids) and os.getpid() not in tree.pids
        assert tree.name(grandchild) == "sleep"
        os.kill(grandchild, 9)
    finally:
        child.kill()
        child.wait()
        assert child.stdout is not None
        child.stdout.close()


@given(st.binary(max_size=15), st.sampled_from("RSDZT"))
def test_any_name_of_a_process_leaves_its_numbers_readable(name: bytes, state: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "5").mkdir()
        numbers = b" ".join(b"%d" % n for n in range(4, 50))
        line = b"5 (" + name + b") " + state.encode() + b" 3 " + numbers + b"\n"
        (Path(folder) / "5/stat").write_bytes(line)
        stat = read_stat(5, proc=Path(folder))
    assert stat is not None
    assert (stat.state, stat.ppid, stat.utime, stat.stime) == (state, 3, 13, 14)
    assert (stat.threads, stat.rss) == (19, 23)


@given(st.binary(max_size=60))
def test_a_garbled_stat_file_is_a_process_that_has_gone(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "5").mkdir()
        (Path(folder) / "5/stat").write_bytes(content)
        assert read_stat(5, proc=Path(folder)) is None
