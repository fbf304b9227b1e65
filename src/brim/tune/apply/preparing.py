"""A command and an environment under which settings hold.

Each knob goes the first of these ways that is open to it: the framework's own argument, an
injected hook, an environment variable.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from brim.tune.apply.command import Invocation, read_command, with_assignment, with_flag
from brim.tune.apply.environment import variables
from brim.tune.apply.frameworks import Arguments, Known, arguments_for
from brim.tune.knobs import KNOBS, How, Settings, check

BY_VARIABLE: Final = frozenset(id for id, knob in KNOBS.items() if knob.by == ("environment",))
APPLY: Final = "BRIM_APPLY"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alternate:
    """Settings laid over the others, and taken away, in turn inside one process."""

    settings: Settings
    every: int = 10
    """Optimizer steps between two switches."""

    def __post_init__(self) -> None:
        check(self.settings)
        if self.every < 1:
            raise ValueError(f"every is {self.every}; it must be 1 or more")
        fixed = [id for id in self.settings if not KNOBS[id].live]
        if fixed:
            raise ValueError(f"{', '.join(fixed)}: cannot be switched inside a running process")


@dataclass(frozen=True, kw_only=True, slots=True)
class Prepared:
    """What to start."""

    command: list[str]
    env: Mapping[str, str]
    """To be added to the environment of a job with brim's hooks."""
    how: Mapping[str, How] = field(default_factory=dict)
    """Of each knob, the way it goes."""


def prepare(
    command: Sequence[str],
    settings: Settings,
    cwd: Path,
    *,
    alternate: Alternate | None = None,
    env: Mapping[str, str] | None = None,
) -> Prepared:
    """``command`` under ``settings``; ``env`` is what it runs in (default: this process's).

    Raises :class:`brim.errors.UsageError` for a knob or a value that there is not.
    """
    check(settings)
    now = os.environ if env is None else env
    invocation = read_command(command, cwd)
    words, how = with_arguments(invocation, settings)
    switched = set(alternate.settings) if alternate is not None else set()
    order = {id: v for id, v in settings.items() if how.get(id) != "argument" or id in switched}
    text: dict[str, object] = {"settings": order}
    if alternate is not None:
        text["alternate"] = {"every": alternate.every, "settings": dict(alternate.settings)}
    for id in {*order, *switched}:
        how[id] = "environment" if id in BY_VARIABLE else "hook"
    env = {**variables(settings, now), APPLY: json.dumps(text)}
    return Prepared(command=words, env=env, how=how)


def with_arguments(invocation: Invocation, settings: Settings) -> tuple[list[str], dict[str, How]]:
    """The command with every setting that its framework takes as an argument."""
    known = Known(invocation, config_text(invocation), settings)
    words, how = list(invocation.words), dict[str, How]()
    for id, value in settings.items():
        arguments = arguments_for(id, value, known)
        if arguments is not None:
            words = _added(words, invocation, arguments)
            how[id] = "argument"
    return words, how


def _added(words: list[str], invocation: Invocation, arguments: Arguments) -> list[str]:
    for name, value in arguments.items():
        if invocation.config is not None:
            words = with_assignment(words, invocation.first, name, value or "null")
        else:
            words = with_flag(words, invocation.first, name, value)
    return words


def config_text(invocation: Invocation) -> str:
    if invocation.config is None or not invocation.config.is_file():
        return ""
    return invocation.config.read_text(encoding="utf-8", errors="replace")
