"""The kept settings as the user would have made them: command, file, environment, code."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path

import msgspec

from brim.record.ladder import Change
from brim.tune.apply.command import Invocation, read_command, with_flag
from brim.tune.apply.environment import variables
from brim.tune.apply.frameworks import Known, arguments_for, own_flag, typed
from brim.tune.apply.preparing import BY_VARIABLE, config_text, with_arguments
from brim.tune.apply.yaml import diff, with_values
from brim.tune.knobs import Settings, Value, check


def advise(
    command: Sequence[str],
    settings: Settings,
    framework: str,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Change:
    """What to change so that ``command`` has ``settings`` without brim.

    ``framework``: whose words the code changes are in, as ``Diagnosis.frameworks`` names it.
    Raises :class:`brim.errors.UsageError` for a knob or a value that there is not.
    """
    check(settings)
    here = Path.cwd() if cwd is None else cwd
    now = os.environ if env is None else env
    invocation = read_command(command, here)
    words, patch, done = _by_arguments(invocation, settings)
    words, done = _by_own_flags(words, invocation, settings, done)
    rest = {id: v for id, v in settings.items() if id not in done}
    environment = variables(rest, now) | _threads(rest)
    code = [
        code_for(id, value, framework)
        for id, value in rest.items()
        if id not in BY_VARIABLE and id != "cpu.threads"
    ]
    changed = words != list(invocation.words) or bool(environment) or bool(patch)
    return Change(
        command=words if changed else [],
        environment=environment,
        patch=patch,
        code=[text for text in code if text],
    )


def _threads(settings: Settings) -> dict[str, str]:
    """torch, OpenMP and MKL read this one."""
    return {"OMP_NUM_THREADS": str(settings["cpu.threads"])} if "cpu.threads" in settings else {}


def _by_arguments(invocation: Invocation, settings: Settings) -> tuple[list[str], str, set[str]]:
    """(command, patch of its file, knobs that are done)."""
    path = invocation.config
    if path is None or path.suffix == ".json":
        words, how = with_arguments(invocation, settings)
        return words, "", set(how)
    before = config_text(invocation)
    known, values, done = Known(invocation, before, settings), dict[str, str | None](), set()
    for id, value in settings.items():
        arguments = arguments_for(id, value, known)
        if arguments is not None:
            values |= arguments
            done.add(id)
    # what the command itself assigns would win over the file
    kept = [w for w in invocation.arguments if w.partition("=")[0] not in values]
    words = [*invocation.words[: invocation.first], *kept]
    return words, diff(path, before, with_values(before, values)), done


def _by_own_flags(
    words: list[str], invocation: Invocation, settings: Settings, done: set[str]
) -> tuple[list[str], set[str]]:
    """Arguments that the user's script has made itself."""
    done = set(done)
    for id, value in settings.items():
        flag = own_flag(id, invocation.source) if id not in done else None
        if flag is not None:
            words = with_flag(words, invocation.first, flag, typed(value))
            done.add(id)
    return words, done


class _Entry(msgspec.Struct, kw_only=True):
    on: dict[str, str] = {}
    """Framework → the change; ``{value}`` is the setting's."""
    off: dict[str, str] = {}
    """The same where the value is false, 0 or ``none``."""


@cache
def _table() -> dict[str, _Entry]:
    data = resources.files("brim.tune.apply").joinpath("code.toml").read_bytes()
    return msgspec.toml.decode(data, type=dict[str, _Entry])


def code_for(id: str, value: Value, framework: str) -> str:
    """The change in words; those for plain PyTorch where the framework has none of its own."""
    entry = _table()[id]
    is_off = value is False or value in (0, "none")
    texts = entry.off if is_off and entry.off else entry.on
    text = texts.get(framework, texts["torch"])
    return text.replace("{value}", str(value))
