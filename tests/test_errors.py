"""The tree of user errors: exit codes, one or two lines."""

from __future__ import annotations

import pytest

from brim.errors import (
    BrimError,
    ConfigError,
    InputError,
    MissingExtra,
    UsageError,
    in_a_line,
)


def test_what_the_user_can_correct_ends_with_2_and_what_failed_with_1() -> None:
    assert [e.exit_code for e in (UsageError, ConfigError, InputError, MissingExtra)] == [2] * 4
    assert BrimError.exit_code == 1


def test_an_error_is_one_line_and_with_a_hint_two() -> None:
    assert str(InputError("x.json: no such file")) == "x.json: no such file"
    assert str(InputError("a: b", hint="do c")) == "a: b\n  do c"


def test_a_missing_package_comes_with_the_command_that_installs_it() -> None:
    error = MissingExtra("the live view", package="textual", extra="watch")
    assert str(error).splitlines() == [
        "the live view needs the package textual, which is not installed",
        "  pip install 'brim[watch]'",
    ]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError("first\nsecond"), "first"),
        (ValueError("\n  late \nmore"), "late"),
        (RuntimeError(), "RuntimeError"),
        (KeyError("name"), "'name'"),
    ],
)
def test_a_librarys_error_is_told_in_a_line(error: Exception, line: str) -> None:
    assert in_a_line(error) == line
