"""What a job says about the settings that it was started with."""

from __future__ import annotations

import json
import math
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
    assert (found.knobs, found.losses, found.error) == ({}, {}, None)


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


def test_losses_go_to_the_steps_of_their_process_and_nan_stays_nan(tmp_path: Path) -> None:
    save_info(tmp_path, RunInfo())
    header = {"kind": "header", "pid": 7, "rank": 0}
    steps = [{"n": n, "t": float(n), "wall": 1.0, "clock": "opt0"} for n in range(4)]
    text = "".join(json.dumps(line) + "\n" for line in [header, *steps])
    (tmp_path / "steps.rank0.7.jsonl").write_text(text)
    _write(
        tmp_path,
        {"kind": "loss", "pid": 7, "values": {"0": 2.5, "1": None}},
        {"kind": "loss", "pid": 7, "values": {"2": 1.25}},
        {"kind": "loss", "pid": 8, "values": {"3": 9.0}},  # another process of the rank
    )
    run = read_run(tmp_path)
    losses = [step.loss for step in run.processes[0].steps]
    assert losses[0] == 2.5
    assert losses[1] is not None
    assert math.isnan(losses[1])
    assert losses[2:] == [1.25, None]
    assert set(run.applied) == {0}
