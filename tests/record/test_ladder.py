"""A ladder as a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.report.test_ladder import EXAMPLES

from brim.errors import InputError
from brim.record.ladder import encode, read


@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_written_is_read_back(name: str, tmp_path: Path) -> None:
    ladder = EXAMPLES[name]()
    path = tmp_path / "ladder.json"
    path.write_bytes(encode(ladder))
    assert read(path) == ladder
    assert path.read_bytes().endswith(b"}\n")


def test_a_field_of_a_later_version_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    path.write_bytes(encode(EXAMPLES["kept"]()).replace(b'"runs":', b'"new": 1, "runs":', 1))
    assert read(path).runs == 14


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"version": 1', "\xff"])
def test_what_is_no_ladder_is_the_user_s_mistake(text: str, tmp_path: Path) -> None:
    path = tmp_path / "ladder.json"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(InputError, match="not a ladder"):
        read(path)
    with pytest.raises(InputError, match="no such file"):
        read(tmp_path / "other.json")
