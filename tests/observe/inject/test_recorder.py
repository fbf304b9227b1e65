"""Counters and files: what is written, and what happens when it cannot be."""

from __future__ import annotations

import errno
import json
import os
import stat
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from brim.record.steps import read_process


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------------------------- files


def test_a_file_is_readable_by_its_owner_only_and_holds_whole_lines(
    recorder: Any, tmp_path: Path
) -> None:
    appender = recorder.Appender("a.jsonl")
    appender.line({"ü": 1})
    appender.line({"n": 2})
    assert _lines(tmp_path / "a.jsonl") == [{"ü": 1}, {"n": 2}]
    assert stat.S_IMODE((tmp_path / "a.jsonl").stat().st_mode) == 0o600


def test_a_file_stays_bounded(
    recorder: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "MAX_BYTES", 100)
    appender = recorder.Appender("a.jsonl")
    for n in range(1000):
        appender.line({"n": n})
    assert (tmp_path / "a.jsonl").stat().st_size <= 100
    assert not recorder.full  # a bound is no failure


def test_after_the_first_failure_nothing_is_written_and_nothing_raised(
    recorder: Any, tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").symlink_to("/dev/full")
    appender = recorder.Appender("a.jsonl")
    appender.line({"n": 1})
    assert recorder.full
    other = recorder.Appender("b.jsonl")
    other.line({"n": 2})
    assert not (tmp_path / "b.jsonl").exists()


@pytest.mark.parametrize("folder", ["/nowhere/at/all", "/dev/null"])
def test_a_run_directory_that_is_gone_harms_nothing(recorder: Any, folder: str) -> None:
    recorder.options["run_dir"] = folder
    recorder.Appender("a.jsonl").line({"n": 1})
    recorder.seen("python")
    assert recorder.full


# ---------------------------------------------------------------------------------- steps


def _recorder(recorder: Any) -> Any:
    made = recorder.recorder()
    assert made is not None
    return made


def test_a_recorder_writes_a_header_a_line_a_step_and_a_footer(
    recorder: Any, tmp_path: Path
) -> None:
    rec = _recorder(recorder)
    rec.add("backward", 0.25)
    rec.add("backward", 0.5)
    rec.tick("opt0")
    rec.tick("opt0")
    rec.finish("the test ended")
    process = read_process(next(tmp_path.glob("steps.rank0.*.jsonl")))
    assert process is not None
    assert process.header.pid == os.getpid()
    assert [s.clock for s in process.steps] == ["opt0", "opt0", "exit"]
    assert [s.backward for s in process.steps] == [0.75, 0, 0]
    assert process.footer is not None
    assert process.footer.why == "the test ended"
    assert recorder.off
    assert recorder.current is None


def test_steps_hold_wall_and_cpu_of_the_training_thread(recorder: Any, tmp_path: Path) -> None:
    rec = _recorder(recorder)
    begin = time.thread_time()
    while time.thread_time() - begin < 0.05:
        pass
    rec.tick("opt0")
    time.sleep(0.05)
    rec.tick("opt0")
    rec.finish("done")
    process = read_process(next(tmp_path.glob("steps.*.jsonl")))
    assert process is not None
    busy, idle = process.steps[:2]
    assert busy.cpu >= 0.05
    assert idle.cpu < 0.04 <= 0.05 <= idle.wall


def test_steps_are_written_by_the_samplers_thread_and_at_the_latest_when_many_wait(
    recorder: Any, tmp_path: Path
) -> None:
    rec = _recorder(recorder)
    rec.tick("opt0")
    path = next(tmp_path.glob("steps.*.jsonl"))
    end = time.monotonic() + 10
    while len(_lines(path)) < 2 and time.monotonic() < end:
        time.sleep(0.01)
    assert len(_lines(path)) == 2
    rec.sampler.stop()
    for _ in range(recorder.PENDING - 1):
        rec.tick("opt0")
    assert len(_lines(path)) == 2
    rec.tick("opt0")
    assert [line["n"] for line in _lines(path)[1:]] == list(range(recorder.PENDING + 1))


def test_a_restart_leaves_out_the_time_that_was_brims_own(recorder: Any, tmp_path: Path) -> None:
    rec = _recorder(recorder)
    rec.add("gc", 1.0)
    time.sleep(0.1)
    rec.restart()
    rec.tick("opt0")
    rec.finish("done")
    process = read_process(next(tmp_path.glob("steps.*.jsonl")))
    assert process is not None
    assert process.steps[0].wall < 0.1
    assert process.steps[0].gc == 0


def test_a_footer_that_cannot_be_made_still_ends_the_measurement(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from _brim_hooks import facts

    rec = _recorder(recorder)
    monkeypatch.setattr(facts, "footer", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        rec.finish("done")
    assert recorder.off
    assert recorder.current is None


def test_a_process_that_may_start_no_thread_goes_unmeasured(
    recorder: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert recorder.recorder() is None
    assert recorder.off
    assert "can't start" in recorder._failures["recorder"]


def test_a_hook_that_raises_is_remembered_once_and_never_felt(recorder: Any) -> None:
    calls = []

    @recorder.guarded
    def hook(value: int) -> None:
        calls.append(value)
        raise ValueError(value)

    hook(1)
    hook(2)
    assert calls == [1, 2]
    assert recorder._failures == {"hook": "ValueError(1)"}
    recorder.off = True
    hook(3)
    assert calls == [1, 2]


# ---------------------------------------------------------------------------------- clocks


def test_the_cpu_clock_of_a_thread_that_has_ended_is_absent_and_no_crash(recorder: Any) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    for _ in range(200):  # the kernel's thread ends a moment after Python's
        if recorder.thread_cpu(thread.native_id) is None:
            break
        time.sleep(0.01)
    assert recorder.thread_cpu(thread.native_id) is None
    assert recorder.native_id(thread.ident) is None


def test_a_process_whose_training_thread_has_ended_still_ends_its_records(
    recorder: Any, tmp_path: Path
) -> None:
    thread = threading.Thread(target=lambda: _recorder(recorder).tick("opt0"))
    thread.start()
    thread.join()
    recorder.current.finish("the process ended")
    process = read_process(next(tmp_path.glob("steps.*.jsonl")))
    assert process is not None
    assert process.footer is not None
    assert all(s.cpu >= 0 for s in process.steps)


def test_the_cpu_clock_is_the_threads_own(recorder: Any) -> None:
    begin = recorder.thread_cpu(threading.main_thread().native_id)
    own = time.thread_time()
    while time.thread_time() - own < 0.02:
        pass
    spent = recorder.thread_cpu(threading.main_thread().native_id) - begin
    assert 0.02 <= spent < 1.0


@pytest.mark.parametrize(
    ("env", "rank"),
    [({}, 0), ({"RANK": "3"}, 3), ({"SLURM_PROCID": "2"}, 2), ({"RANK": "x", "PMI_RANK": "1"}, 1)],
)
def test_ranks_are_told_by_the_launchers_variables(
    recorder: Any, env: dict[str, str], rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "BRIM_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert recorder.rank() == rank


def test_errno_of_a_full_device_is_what_the_system_says() -> None:
    with pytest.raises(OSError) as error, open("/dev/full", "wb", buffering=0) as f:
        f.write(b"x")
    assert error.value.errno == errno.ENOSPC
