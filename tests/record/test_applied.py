"""What a job says about the settings that it was started with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brim.record.applied import Error, read_applied
from brim.record.run import RunInfo, read_run, save_info


def _write(folder: Path, *lines: dict[str, Any], tail: str = "") -> Path:
    path = folder / "applied.rank0.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return path


def _knob(state: str, pid: int = 1, **more: Any) -> dict[str, Any]:
    return {"kind": "knob", "id": "loader.num_workers", "state": state, "pid": pid, **more}


def test_a_job_without_settings_has_none(tmp_path: Path) -> None:
    found = read_applied(tmp_path / "applied.rank0.jsonl")
    assert (found.knobs, found.error) == ({}, None)


def test_a_later_line_of_a_process_replaces_the_earlier_one(tmp_path: Path) -> None:
    path = _write(tmp_path, _knob("unavailable", reason="no loader"), _knob("applied", was=0))
    assert read_applied(path).knobs["loader.num_workers"].state == "applied"
    path = _write(tmp_path, _knob("applied", was=0), _knob("failed", reason="no more processes"))
    assert read_applied(path).knobs["loader.num_workers"].reason == "no more processes"


@pytest.mark.parametrize(
    ("states", "wanted"),
    [
        (("unavailable", "applied"), "applied"),
        (("applied", "unavailable"), "applied"),
        (("failed", "applied"), "failed"),
    ],
)
def test_of_two_processes_the_one_with_more_to_say_counts(
    tmp_path: Path, states: tuple[str, str], wanted: str
) -> None:
    path = _write(tmp_path, *(_knob(state, pid) for pid, state in enumerate(states)))
    assert read_applied(path).knobs["loader.num_workers"].state == wanted


def test_a_cut_line_and_lines_of_another_version_are_left_out(tmp_path: Path) -> None:
    path = _write(tmp_path, _knob("applied"), _knob("improved"), tail='{"kind":"knob","id":"li')
    assert read_applied(path).knobs["loader.num_workers"].state == "applied"
    assert list(read_applied(path).knobs) == ["loader.num_workers"]


@pytest.mark.parametrize(
    ("name", "text", "memory"),
    [
        ("OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB", True),
        ("RuntimeError", "DefaultCPUAllocator: can't allocate memory: out of memory", True),
        ("RuntimeError", "shape mismatch", False),
    ],
)
def test_an_error_is_known_as_out_of_memory_by_name_or_text(
    name: str, text: str, memory: bool
) -> None:
    assert Error(name=name, text=text).out_of_memory is memory


def test_a_run_has_them_by_rank(tmp_path: Path) -> None:
    save_info(tmp_path, RunInfo())
    header = {"kind": "header", "pid": 7, "rank": 0}
    step = {"n": 0, "t": 1.0, "wall": 1.0, "clock": "opt0", "arm": 1}
    text = "".join(json.dumps(line) + "\n" for line in [header, step])
    (tmp_path / "steps.rank0.7.jsonl").write_text(text)
    _write(tmp_path, _knob("applied", pid=7), {"kind": "error", "name": "KeyError", "pid": 7})
    run = read_run(tmp_path)
    assert run.processes[0].steps[0].arm == 1
    assert run.applied[0].knobs["loader.num_workers"].pid == 7
    assert run.applied[0].error == Error(name="KeyError", pid=7)
