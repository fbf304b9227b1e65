"""Files that a user asked for: refused before the work, whole or not there after it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from brim.cli import outputs
from brim.errors import UsageError


def test_nothing_asked_and_a_new_file_in_a_folder_are_fine(tmp_path: Path) -> None:
    outputs.check(None, tmp_path / "new.json", Path("here.json"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_in_place_of_a_file_and_a_folder_that_is_not_there_are_told_apart(
    tmp_path: Path,
) -> None:
    with pytest.raises(UsageError, match="is a folder"):
        outputs.check(None, tmp_path)
    with pytest.raises(UsageError, match=rf"there is no folder {tmp_path}/no$"):
        outputs.check(tmp_path / "no" / "x.json")


def test_a_folder_without_permission_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the superuser may write anywhere, so the answer of the system is played
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)
    with pytest.raises(UsageError, match=f"the folder {tmp_path} may not be written to"):
        outputs.check(tmp_path / "x.json")


def test_json_is_indented_ends_with_a_newline_and_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("old")
    outputs.write_json(path, {"share": 0.5, "parts": [1, 2]})
    text = path.read_text()
    assert json.loads(text) == {"share": 0.5, "parts": [1, 2]}
    assert text.startswith('{\n  "share"') and text.endswith("}\n")
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_a_write_that_fails_names_the_file_asked_for_and_not_the_temporary_one(
    tmp_path: Path,
) -> None:
    path = tmp_path / "no" / "x.json"
    with pytest.raises(UsageError) as error:
        outputs.write(path, b"{}")
    assert str(error.value) == (
        f"{path}: cannot be written (No such file or directory)\n"
        f"  there is no folder {tmp_path / 'no'}"
    )
