"""Bad samples are listed, counted, and end a run only when they are no exception any more."""

from __future__ import annotations

import json
import pickle
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.data.quarantine import (
    BadSample,
    Quarantine,
    TooManyBadSamples,
    Where,
    _shown,
    read_quarantine,
)


def test_a_line_says_path_line_offset_image_and_reason(tmp_path: Path) -> None:
    quarantine = Quarantine(path=tmp_path / "quarantine.rank0.jsonl")
    bad = BadSample("image.damaged", "JPEG: cut")
    bad.image = "x.jpg"
    quarantine.add(Where("a.jsonl", 7, 120), bad)
    [line] = (tmp_path / "quarantine.rank0.jsonl").read_text().splitlines()
    assert json.loads(line) == {
        "path": "a.jsonl",
        "kind": "image.damaged",
        "reason": "JPEG: cut",
        "line": 7,
        "offset": 120,
        "image": "x.jpg",
    }


@pytest.mark.parametrize(("seen", "bad", "stops"), [
    (20, 10, False), (20, 11, True),           # a share of a few samples says nothing
    (5000, 50, False), (5000, 51, True),       # 1 %
    (10**6, 1000, False), (10**6, 1001, True), # 1,000
])  # fmt: skip
def test_the_run_stops_above_1_percent_or_1000(seen: int, bad: int, stops: bool) -> None:
    quarantine = Quarantine()
    for line in range(bad):
        quarantine.add(Where("a", line), BadSample("image.damaged", "x"))
    if stops:
        with pytest.raises(TooManyBadSamples, match=f"{bad} of {seen} samples are bad"):
            quarantine.check(seen)
    else:
        quarantine.check(seen)


@given(st.text(), st.text(max_size=2000))
def test_hostile_text_is_written_encodable_bounded_and_without_control_characters(
    reason: str, image: str
) -> None:
    for shown in (_shown(reason), _shown(image)):
        shown.encode()
        assert len(shown) < 340
        assert all(c.isprintable() or c == "�" for c in shown)


def test_a_line_cut_by_a_crash_is_left_out_when_read(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    quarantine = Quarantine(path=path)
    for n in range(3):
        quarantine.add(Where("a", n + 1), BadSample("k", "r"))
    path.write_bytes(path.read_bytes()[:-5])
    assert [entry.line for entry in read_quarantine(path)] == [1, 2]


def test_8_threads_lose_no_line(tmp_path: Path) -> None:
    quarantine = Quarantine(path=tmp_path / "q.jsonl")

    def work(first: int) -> None:
        for line in range(first, first + 25):
            quarantine.add(Where("a", line), BadSample("k", "r"))

    threads = [threading.Thread(target=work, args=(25 * n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert quarantine.total == 200
    assert len(list(read_quarantine(tmp_path / "q.jsonl"))) == 200


def test_a_bad_sample_travels_between_processes() -> None:
    bad = BadSample("k", "why")
    bad.image = "x.jpg"
    back = pickle.loads(pickle.dumps(bad))
    assert (back.kind, back.reason, str(back), back.image) == ("k", "why", "why", "x.jpg")


def test_the_same_bad_sample_in_three_epochs_counts_once(tmp_path: Path) -> None:
    quarantine = Quarantine(path=tmp_path / "q.jsonl")
    for _ in range(3):
        for line in (1, 2):
            quarantine.add(Where("a", line), BadSample("k", "r"))
    assert quarantine.total == 2
    assert [entry.line for entry in read_quarantine(tmp_path / "q.jsonl")] == [1, 2]
