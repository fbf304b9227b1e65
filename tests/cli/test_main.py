"""The command line as a whole: help, usage errors, what ends a verb."""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brim import __version__
from brim.cli import main as cli
from brim.cli.main import VERBS, main
from brim.errors import InputError


def _usage_error(argv: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a call that argparse refuses prints; its exit code is 2."""
    with pytest.raises(SystemExit) as end:
        main(argv)
    assert end.value.code == 2
    out, error = capsys.readouterr()
    assert out == ""
    return error


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "VERB"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["--nonsense"], "VERB"),
        (["--", "python", "train.py"], "VERB"),
        (["diagnose", "--nonsense", "x"], "unrecognized arguments: --nonsense"),
        (["diagnose", "--json"], "--json"),
        (["hw", "--", "python"], "hw takes no command after --"),
    ],
)
def test_wrong_usage_is_two_lines_and_exit_code_2(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    error = _usage_error(argv, capsys)
    assert says in error
    assert len(error.splitlines()) == 2
    assert "--help" in error.splitlines()[1]


@pytest.mark.parametrize("verb", sorted(VERBS))
def test_every_verb_has_its_module_its_help_and_its_sentence(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = importlib.import_module(f"brim.cli.{verb}").Command
    assert command.__doc__
    with pytest.raises(SystemExit) as end:
        main([verb, "--help"])
    assert end.value.code == 0
    assert VERBS[verb][1:40] in " ".join(capsys.readouterr().out.split())


def test_the_version_is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"brim {__version__}\n"


@pytest.mark.parametrize(
    ("words", "before", "behind"),
    [
        (["diagnose", "--", "python", "t.py"], ["diagnose"], ["python", "t.py"]),
        (["a", "--", "b", "--", "c"], ["a"], ["b", "--", "c"]),  # the command's own is left alone
        (["a", "--"], ["a"], []),
        (["a"], ["a"], []),
    ],
)
def test_what_stands_behind_the_dashes_is_the_users_and_never_parsed(
    words: list[str], before: list[str], behind: list[str]
) -> None:
    assert cli._split(words) == (before, behind)


class _Raises:
    error: BaseException

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int:
        raise self.error


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (InputError("x.json: no such file", hint="look again"), 2,
         "brim hw: x.json: no such file\n  look again\n"),
        (KeyboardInterrupt(), 130, ""),
    ],
)  # fmt: skip
def test_an_error_that_a_user_can_act_on_is_printed_without_a_traceback(
    error: BaseException, code: int, text: str, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    _Raises.error = error
    monkeypatch.setattr("brim.cli.hw.Command", _Raises)
    assert main(["hw"]) == code
    assert capsys.readouterr().err == text


def test_a_mistake_of_a_programmer_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    _Raises.error = ZeroDivisionError()
    monkeypatch.setattr("brim.cli.hw.Command", _Raises)
    with pytest.raises(ZeroDivisionError):
        main(["hw"])


def test_a_reader_that_goes_away_is_no_traceback(tmp_path: Path) -> None:
    program = (
        "import sys; from brim.cli import main as m\n"
        "class C:\n"
        "    def add_arguments(self, p): pass\n"
        "    def run(self, a):\n"
        "        for _ in range(100000): print('x' * 100)\n"
        "        return 0\n"
        "import brim.cli.hw; brim.cli.hw.Command = C\n"
        "sys.exit(m.main(['hw']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=dict(os.environ),
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    error = process.stderr.read()
    process.stderr.close()
    assert (process.wait(20), error) == (1, b"")
