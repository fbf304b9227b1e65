"""Records of loader workers."""

from __future__ import annotations

import json
from pathlib import Path

from brim.record.workers import read_workers


def test_a_job_without_loader_workers_has_no_file_and_no_lines(tmp_path: Path) -> None:
    assert read_workers(tmp_path / "workers.rank0.jsonl") == []


def test_lines_of_several_workers_share_a_file_and_the_cut_last_one_is_left_out(
    tmp_path: Path,
) -> None:
    path = tmp_path / "workers.rank0.jsonl"
    rows = [
        {"pid": 11, "worker": 0, "workers": 2, "getitem": 0.25, "stacks": {"1": [3, 0.1, 0.1, 0]}},
        {"pid": 12, "worker": 1, "workers": 2, "cpu": 0.5, "later_field": 1},
    ]
    path.write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"pid": 11, "wor')
    found = read_workers(path)
    assert [(line.pid, line.worker) for line in found] == [(11, 0), (12, 1)]
    assert found[0].stacks["1"] == (3, 0.1, 0.1, 0)
    assert found[1].cpu == 0.5


def test_a_line_without_a_process_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "workers.rank0.jsonl"
    path.write_text('{"worker": 0}\n{"pid": 3}\n')
    assert [line.pid for line in read_workers(path)] == [3]
