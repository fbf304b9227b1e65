"""``brim compare`` on the command line: inputs, outputs, exit codes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.report import examples

from brim.cli.main import main
from brim.record import findings


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    """A run directory and a findings.json under another name."""
    folder = tmp_path / "before"
    folder.mkdir()
    findings.write(folder / "findings.json", examples.input_bound())
    findings.write(tmp_path / "after.json", examples.input_cured())
    return str(folder), str(tmp_path / "after.json")


def test_a_run_directory_and_a_findings_file_are_compared(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *pair]) == 0
    out = capsys.readouterr().out
    assert " ".join(out.split()).startswith("B is faster: 103 ms a step instead of 205 ms, 1.98×")
    assert "input.workers" in out


@pytest.mark.parametrize(
    ("swap", "limit", "code"),
    [
        (False, "0.05", 0),  # B is faster
        (True, "0.05", 3),  # nearly twice as long
        (True, "95%", 3),
        (True, "1.5", 0),
    ],
)
def test_exit_code_3_when_b_is_worse_by_more_than_the_limit(
    pair: tuple[str, str], swap: bool, limit: str, code: int
) -> None:
    order = pair[::-1] if swap else pair
    assert main(["compare", *order, "--fail-above", limit]) == code


def test_the_limit_itself_is_not_exceeded(pair: tuple[str, str]) -> None:
    assert main(["compare", pair[0], pair[0], "--fail-above", "0"]) == 0


def test_json_and_html_are_written(pair: tuple[str, str], tmp_path: Path) -> None:
    to_json, to_html = tmp_path / "c.json", tmp_path / "c.html"
    assert main(["compare", *pair, "--json", str(to_json), "--html", str(to_html)]) == 0
    data = json.loads(to_json.read_text())
    assert data["version"] == 1
    assert data["speed"]["low"] < data["speed"]["ratio"] < data["speed"]["high"]
    assert data["causes"][0]["cause"] == "input.workers"
    assert data["a"]["name"] == pair[0]
    assert "<h1>B is faster" in to_html.read_text()


@pytest.mark.parametrize("limit", ["-0.1", "x", "nan", "inf"])
def test_a_limit_that_is_no_share_is_wrong_usage(
    pair: tuple[str, str], limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["compare", *pair, f"--fail-above={limit}"])
    assert stop.value.code == 2
    assert "--fail-above" in capsys.readouterr().err


def test_a_missing_side_is_named_in_one_line(
    pair: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", pair[0], "nowhere"]) == 2
    assert capsys.readouterr().err == "brim compare: nowhere: no such file or folder\n"


def test_a_folder_that_cannot_be_written_is_a_message(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *pair, "--json", str(tmp_path / "no" / "c.json")]) == 2
    err = capsys.readouterr().err
    assert err.startswith("brim compare: ") and "c.json" in err
    assert len(err.splitlines()) <= 2
