"""Any JSON lines, however they are laid out, come out as Python's json reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.data.lines import Lines, duplicates
from brim.data.quarantine import BadSample

values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
records = st.lists(st.dictionaries(st.text(), values, max_size=4), min_size=1, max_size=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@settings(max_examples=80, deadline=None)
@given(records, st.sampled_from(["\n", "\r\n"]), st.booleans(), st.booleans(), st.data())
def test_records_and_their_places_whatever_stands_between(
    folder: Path, found: list[dict[str, Any]], end: str, ascii_only: bool, last: bool, data: Any
) -> None:
    path = folder / "a.jsonl"
    texts = [json.dumps(record, ensure_ascii=ascii_only) for record in found]
    blanks = [data.draw(st.integers(0, 2)) for _ in texts]
    lines: list[str] = []
    for text, blank in zip(texts, blanks, strict=True):
        lines += [" " * blank] * blank + [text]
    try:
        path.write_bytes(end.join(lines).encode() + (end.encode() if last else b""))
    except UnicodeEncodeError:  # half of a surrogate pair: no file can hold it
        return
    reader = Lines(path)
    assert len(reader) == len(found)
    whole = path.read_bytes()
    for k, record in enumerate(found):
        assert reader.record(k) == record
        place = reader.where(k)
        assert place.line is not None and place.offset is not None
        assert lines[place.line - 1] == texts[k]
        assert whole[place.offset :].startswith(texts[k].encode())


@settings(max_examples=60, deadline=None)
@given(records, st.sampled_from([None, 0, 2, "\t"]), st.sampled_from(["", "\n", "  \n"]))
def test_arrays_of_any_layout_are_read_element_by_element(
    folder: Path, found: list[dict[str, Any]], indent: Any, around: str
) -> None:
    path = folder / "a.json"
    path.write_text(around + json.dumps(found, indent=indent) + around)
    reader = Lines(path)
    assert [reader.record(k) for k in range(len(reader))] == found
    assert [reader.where(k).line for k in range(len(reader))] == list(range(1, len(found) + 1))


@settings(max_examples=200, deadline=None)
@given(st.binary(min_size=1, max_size=60).filter(lambda b: b.strip(b" \t\r\n") and b"\n" not in b))
def test_any_bytes_are_a_record_or_a_reason(folder: Path, line: bytes) -> None:
    path = folder / "b.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line + b'\n{"b": 2}\n')
    reader = Lines(path)
    assert reader.record(0) == {"a": 1}
    assert reader.record(len(reader) - 1) == {"b": 2}
    try:
        value = reader.record(1)
    except BadSample as bad:
        assert bad.kind.startswith("json.") and bad.reason
    else:
        assert value == json.loads(line)


@given(st.lists(st.sampled_from(["a", "b", "c", "é"]), max_size=8))
def test_keys_that_come_twice_are_named_once_each(names: list[str]) -> None:
    text = "{" + ", ".join(f"{json.dumps(n)}: {k}" for k, n in enumerate(names)) + "}"
    assert list(duplicates(text.encode())) == sorted({n for n in names if names.count(n) > 1})


def test_a_deep_and_a_huge_number_are_reasons_and_no_crash(folder: Path) -> None:
    path = folder / "c.jsonl"
    path.write_bytes(b"[" * 100_000 + b"\n" + b'{"n": ' + b"9" * 5000 + b"}\n")
    reader = Lines(path)
    for k, kind in enumerate(("json.nesting", "json.number")):
        with pytest.raises(BadSample) as caught:
            reader.record(k)
        assert caught.value.kind in (kind, "json.syntax")
