"""The loader's records: whole lines in, whole lines out."""

from __future__ import annotations

from pathlib import Path

from brim.record.loader import LoaderDeath, LoaderLine, append, read_loader


def test_windows_and_deaths_come_back_in_their_order(tmp_path: Path) -> None:
    path = tmp_path / "loader.rank0.jsonl"
    lines = [
        LoaderLine(t=1.0, wall=2.0, rows=3, stages={"read": 0.5}, bound_by="read", change="x"),
        LoaderDeath(t=2.0, exit_code=-9, suspects=[4, 5], step=7),
        LoaderLine(t=3.0, wall=2.0),
        LoaderDeath(t=4.0),
    ]
    for line in lines:
        append(path, line)
    record = read_loader(path)
    assert record.windows == [lines[0], lines[2]]
    assert record.deaths == [lines[1], lines[3]]
    assert record.deaths[1].exit_code is None  # it hung: absent is not zero


def test_a_line_cut_by_a_crash_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "loader.rank0.jsonl"
    for t in (1.0, 2.0):
        append(path, LoaderLine(t=t, wall=1.0))
    path.write_bytes(path.read_bytes()[:-3])
    assert [window.t for window in read_loader(path).windows] == [1.0]


def test_a_run_without_brims_loader_has_no_lines(tmp_path: Path) -> None:
    assert read_loader(tmp_path / "none.jsonl").windows == []
