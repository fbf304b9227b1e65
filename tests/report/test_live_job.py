"""The running job's figures from the files that its hooks append to."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from brim.record import findings
from brim.record.findings import Diagnosis, Entry, Window
from brim.record.run import create, finish
from brim.report.live_job import JobFollower, find_running


def _run(tmp_path: Path) -> Path:
    return create(tmp_path, ["python", "train.py"], {}, "0")


def _append(folder: Path, *lines: dict[str, Any], rank: int = 0, pid: int = 7) -> None:
    with (folder / f"steps.rank{rank}.{pid}.jsonl").open("a") as f:
        for line in lines:
            f.write(json.dumps(line) + "\n")


def _steps(count: int, *, wall: float = 0.5, start: int = 0, **fields: Any) -> list[dict[str, Any]]:
    return [
        {"n": start + i, "t": 100 + wall * (start + i), "wall": wall, "clock": "opt0", **fields}
        for i in range(count)
    ]


HEADER = {"kind": "header", "pid": 7, "rank": 0, "t": 99.0}


def test_steps_tokens_images_and_where_the_time_goes(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    step = {
        "input_wait": 0.1, "backward": 0.2, "optimizer": 0.05, "images": 4, "documents": 3,
        "batches": 1,
        "tokens": 1000, "pad_tokens": 200, "counted_batches": 1, "loss": 1.5,
    }  # fmt: skip
    _append(folder, HEADER, *_steps(10, **step))
    view = JobFollower(folder).view(now=105.0)
    assert view is not None
    assert (view.step, view.ranks, view.state) == (9, 1, "running")
    assert view.steps_s == pytest.approx(2.0) and view.images_s == pytest.approx(8.0)
    assert view.samples_s == pytest.approx(6.0)
    # padding is no token
    assert view.tokens_s == pytest.approx(1600.0) and view.loss == 1.5
    assert view.phases == pytest.approx(
        {"input": 0.2, "backward": 0.4, "optimizer": 0.1, "forward, rest": 0.3}
    )


def test_tokens_of_the_counted_batches_stand_for_those_not_counted(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    counted = _steps(5, tokens=1000, counted_batches=1, batches=1)
    _append(folder, *counted, *_steps(5, start=5, batches=1))
    view = JobFollower(folder).view(now=105.0)
    assert view is not None and view.tokens_s == pytest.approx(2000.0)


def test_figures_are_of_the_last_twenty_seconds(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    _append(folder, *_steps(100, wall=1.0, images=1), *_steps(100, wall=1.0, start=100, images=3))
    view = JobFollower(folder).view(now=300.0)
    assert view is not None and view.images_s == pytest.approx(3.0)


def test_what_was_not_counted_is_absent_not_zero(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    _append(folder, *_steps(4))
    view = JobFollower(folder).view(now=102.0)
    assert view is not None
    assert view.tokens_s is None and view.images_s is None and view.loss is None
    assert view.samples_s is None


def test_before_the_first_step_there_is_nothing_to_show(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    assert JobFollower(folder).view() is None
    _append(folder, HEADER)
    assert JobFollower(folder).view() is None


def test_two_ranks_add_their_tokens_and_a_helper_process_of_a_rank_does_not(
    tmp_path: Path,
) -> None:
    folder = _run(tmp_path)
    for rank in (0, 1):
        _append(folder, *_steps(10, tokens=500, counted_batches=1, batches=1), rank=rank, pid=rank)
    _append(folder, *_steps(2, tokens=500), rank=0, pid=99)
    view = JobFollower(folder).view(now=105.0)
    assert view is not None
    assert view.ranks == 2 and view.tokens_s == pytest.approx(2000.0)


def test_lines_of_several_clocks_are_steps_of_the_optimizer_only(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    lines = []
    for i in range(6):
        t = 100 + i * 1.0
        lines.append({"n": 2 * i, "t": t + 0.3, "wall": 0.3, "clock": "loader"})
        lines.append({"n": 2 * i + 1, "t": t + 1.0, "wall": 0.7, "clock": "opt0"})
    _append(folder, *lines)
    view = JobFollower(folder).view(now=106.0)
    assert view is not None and view.steps_s == pytest.approx(1.0)


def test_a_job_that_stopped_writing_is_not_called_running(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    _append(folder, *_steps(4))
    follower = JobFollower(folder)
    silent = follower.view(now=101.5 + 42)
    dead = follower.view(now=101.5 + 4000)
    assert silent is not None and silent.state == "no step for 42 s"
    assert dead is not None and dead.state == "nothing written for minutes"
    finish(folder, exit_code=137, wall_s=5.0)
    ended = follower.view(now=102.0)
    assert ended is not None and ended.state == "ended with 137"


def test_garbage_and_lines_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    file = folder / "steps.rank0.7.jsonl"
    file.write_bytes(b"\x00\xff\n[1]\n" + b'{"wall":"soon"}\n')
    _append(folder, *_steps(3, brand_new=[1]))
    view = JobFollower(folder).view(now=102.0)
    assert view is not None and view.step == 2


def test_the_verdict_of_a_diagnosis_is_shown(tmp_path: Path) -> None:
    folder = _run(tmp_path)
    _append(folder, *_steps(3))
    diagnosis = Diagnosis(
        verdict="The loader is too slow.",
        window=Window(steps=3, wall_s=1.5, ranks=1),
        account=[Entry(part="unknown", cause="unknown", share=1.0)],
        findings=[],
    )
    findings.write(folder / "findings.json", diagnosis)
    view = JobFollower(folder).view(now=102.0)
    assert view is not None and view.verdict == "The loader is too slow."


def test_the_newest_run_that_still_writes_is_found_and_ended_ones_are_not(tmp_path: Path) -> None:
    assert find_running(tmp_path / "absent") is None
    old, ended, stale = (tmp_path / name for name in ("2026-01", "2026-02", "2026-03"))
    for folder in (old, ended, stale):
        folder.mkdir()
        (folder / "run.json").write_bytes(msgspec.json.encode({"command": ["x"]}))
    finish(ended, exit_code=0, wall_s=1.0)
    hours_ago = time.time() - 7200
    os.utime(stale / "run.json", (hours_ago, hours_ago))
    assert find_running(tmp_path) == old
