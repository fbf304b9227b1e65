"""The folder of a search."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.errors import InputError, UsageError
from brim.tune.state import default_path, identity, open_folder

COMMAND = ["python", "train.py", "--lr", "1e-5"]


def test_each_job_each_place_and_each_window_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = default_path(COMMAND, 40)
    assert here.name.startswith("tune-train-")
    others = {default_path([*COMMAND, "--x"], 40), default_path(COMMAND, 50)}
    monkeypatch.chdir(tmp_path)
    others.add(default_path(COMMAND, 40))
    assert len(others | {here}) == 4


def test_a_secret_in_the_command_is_in_no_file_name_and_no_file(tmp_path: Path) -> None:
    command = ["python", "train.py", "--hub-token", "hf_abcdefghijkl"]
    folder = open_folder(tmp_path / "tune", command, 40, fresh=False)
    assert "hf_abc" not in str(default_path(command, 40))
    assert "hf_abc" not in (folder.path / "job.json").read_text()


def test_the_log_of_the_same_job_stays_and_fresh_forgets_it(tmp_path: Path) -> None:
    folder = open_folder(tmp_path / "tune", COMMAND, 40, fresh=False)
    folder.log.write_text("{}\n")
    (folder.runs / "r").mkdir(parents=True)
    again = open_folder(tmp_path / "tune", COMMAND, 40, fresh=False)
    assert again.log.read_text() == "{}\n"
    new = open_folder(tmp_path / "tune", COMMAND, 40, fresh=True)
    assert not new.log.exists()
    assert not new.runs.exists()


def test_another_job_s_folder_is_refused_and_named(tmp_path: Path) -> None:
    open_folder(tmp_path / "tune", COMMAND, 40, fresh=False)
    with pytest.raises(UsageError, match=r"python train\.py --lr 1e-5"):
        open_folder(tmp_path / "tune", ["python", "other.py"], 40, fresh=False)
    assert identity(COMMAND, 40) != identity(COMMAND, 41)


def test_a_folder_with_other_things_is_refused_and_fresh_does_not_touch_them(
    tmp_path: Path,
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "thesis.txt").write_text("years of work")
    for fresh in (False, True):
        with pytest.raises(UsageError, match="not empty"):
            open_folder(tmp_path, COMMAND, 40, fresh=fresh)
    assert (tmp_path / "runs" / "thesis.txt").read_text() == "years of work"


def test_a_damaged_folder_says_so(tmp_path: Path) -> None:
    open_folder(tmp_path / "tune", COMMAND, 40, fresh=False)
    (tmp_path / "tune" / "job.json").write_text("{")
    with pytest.raises(InputError, match=r"job\.json: cannot be read"):
        open_folder(tmp_path / "tune", COMMAND, 40, fresh=False)


def test_a_place_that_cannot_be_a_folder_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be used"):
        open_folder(tmp_path / "file" / "tune", COMMAND, 40, fresh=False)
