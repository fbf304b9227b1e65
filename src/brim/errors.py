"""The tree of errors a user can act on.

::

    BrimError            1  something failed
    ├── UsageError       2  wrong command line
    │   └── ConfigError  2  wrong field in a configuration file
    ├── InputError       2  a file or folder is not what it should be
    └── MissingExtra     2  a feature needs a package that is not installed

Each prints as one or two lines, never as a traceback: what, where, what to do.
"""

from __future__ import annotations

GOOD = 0
FAILED = 1
WRONG_USAGE = 2
OVER_THRESHOLD = 3


class BrimError(Exception):
    """Base of every error a user can act on; ``hint`` says what to do."""

    exit_code = FAILED

    def __init__(self, what: str, *, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint

    def __str__(self) -> str:
        what = super().__str__()
        return f"{what}\n  {self.hint}" if self.hint else what


class UsageError(BrimError):
    exit_code = WRONG_USAGE


class ConfigError(UsageError):
    pass


class InputError(BrimError):
    exit_code = WRONG_USAGE


def in_a_line(error: BaseException) -> str:
    """What a library's error says, as far as its first line; its kind where it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0].strip() if lines else type(error).__name__


class MissingExtra(BrimError):
    """A feature needs an optional dependency."""

    exit_code = WRONG_USAGE

    def __init__(self, feature: str, *, package: str, extra: str) -> None:
        super().__init__(
            f"{feature} needs the package {package}, which is not installed",
            hint=f"pip install 'brim[{extra}]'",
        )
