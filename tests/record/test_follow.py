"""Reading a file that grows, line by line, whatever pieces it arrives in."""

from __future__ import annotations

from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.record.follow import Follower


def test_lines_appear_once_and_only_when_they_are_whole(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    follower = Follower(file)
    assert follower.lines() == []
    file.write_bytes(b'{"n":1}\n{"n":')
    assert follower.lines() == [b'{"n":1}']
    with file.open("ab") as f:
        f.write(b'2}\n\n{"n":3}\n')
    assert follower.lines() == [b'{"n":2}', b'{"n":3}']
    assert follower.lines() == []


def test_a_late_start_skips_what_is_far_back_and_the_line_it_lands_in(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"".join(b'{"n":%04d}\n' % n for n in range(100)))
    assert Follower(file, tail_bytes=35).lines() == [b'{"n":0097}', b'{"n":0098}', b'{"n":0099}']


def test_a_file_that_was_replaced_is_read_from_its_start(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"old old old\n")
    follower = Follower(file, tail_bytes=4)
    follower.lines()
    file.write_bytes(b"new\n")
    assert follower.lines() == [b"new"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(st.binary(min_size=1, max_size=12).filter(lambda b: b"\n" not in b)),
    cuts=st.lists(st.integers(0, 200), max_size=6),
)
def test_any_cutting_of_the_stream_yields_the_same_lines(
    lines: list[bytes], cuts: list[int], tmp_path: Path
) -> None:
    file = tmp_path / "a.jsonl"
    file.write_bytes(b"")
    stream = b"".join(line + b"\n" for line in lines)
    follower = Follower(file)
    found: list[bytes] = []
    at = 0
    for cut in [*sorted(c for c in cuts if c <= len(stream)), len(stream)]:
        with file.open("ab") as f:
            f.write(stream[at:cut])
        at = cut
        found += follower.lines()
    assert found == lines
