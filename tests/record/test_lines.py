"""Append-only JSON lines, cut and damaged in every way that a killed job leaves them."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from brim.record.lines import decoded, read_lines

PATHS = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
RECORDS = st.lists(
    st.dictionaries(st.sampled_from(["kind", "n", "ü", "x"]), st.text(max_size=8), max_size=3),
    max_size=6,
)


def _bytes(records: list[dict[str, str]]) -> bytes:
    return b"".join(json.dumps(r).encode() + b"\n" for r in records)


@PATHS
@given(records=RECORDS, data=st.data())
def test_a_file_cut_at_any_byte_gives_exactly_the_lines_before_the_cut(
    records: list[dict[str, str]], data: st.DataObject, tmp_path: Path
) -> None:
    whole = _bytes(records)
    cut = data.draw(st.integers(0, len(whole)))
    path = tmp_path / "steps.jsonl"
    path.write_bytes(whole[:cut])
    expected = records[: whole[:cut].count(b"\n")]
    found = list(read_lines(path))
    assert [json.loads(line) for _, line in found] == expected
    assert [kind for kind, _ in found] == [r.get("kind", "") for r in expected]


@PATHS
@given(records=RECORDS, noise=st.binary(max_size=40), data=st.data())
def test_noise_between_two_lines_costs_no_other_line(
    records: list[dict[str, str]], noise: bytes, data: st.DataObject, tmp_path: Path
) -> None:
    at = data.draw(st.integers(0, len(records)))
    noise = noise.replace(b"\n", b" ")
    path = tmp_path / "steps.jsonl"
    path.write_bytes(_bytes(records[:at]) + noise + b"\n" + _bytes(records[at:]))
    found = [line for _, line in read_lines(path)]
    for record in records:
        assert json.dumps(record).encode() + b"\n" in found
    assert len(records) <= len(found) <= len(records) + 1


@pytest.mark.parametrize("damaged", [b"[1, 2]", b"3", b'{"kind": 7}', b"\xff\xfe", b"{", b"null"])
def test_a_whole_line_that_is_no_record_is_left_out(damaged: bytes, tmp_path: Path) -> None:
    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"kind":"a"}\n' + damaged + b'\n{"kind":"b"}\n')
    assert [kind for kind, _ in read_lines(path)] == ["a", "b"]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").touch()
    assert list(read_lines(tmp_path / "x.jsonl")) == []


def test_a_line_of_another_shape_is_left_out_and_unknown_fields_are_ignored(tmp_path: Path) -> None:
    class Row(msgspec.Struct):
        n: int

    path = tmp_path / "x.jsonl"
    path.write_bytes(b'{"n": 1, "later": true}\n{"n": "two"}\n{"m": 3}\n{"n": 4}\n')
    assert [row.n for row in decoded(path, Row)] == [1, 4]
