"""TOML tables to frozen dataclasses, and back; every mistake names the nearest valid field."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from brim.errors import ConfigError

T = TypeVar("T")


def read(path: Path) -> dict[str, Any]:
    """Parse a TOML file; raises :class:`ConfigError` when it cannot be read or is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path} does not exist") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read ({error.strerror})") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from None


def override(table: dict[str, Any], settings: Sequence[str]) -> None:
    """Apply ``a.b=value`` in place; the value is TOML, or else a string as it stands."""
    for setting in settings:
        path, equals, text = setting.partition("=")
        if not equals or not path:
            raise ConfigError(f"--set {setting}", hint="write --set table.field=value")
        *parents, name = path.strip().split(".")
        inner = table
        for parent in parents:
            inner = inner.setdefault(parent, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {setting}: {parent} is a field, not a table")
        inner[name] = _value(text.strip())


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def build(cls: type[T], table: Mapping[str, Any], where: str = "") -> T:
    """``cls`` from a table, checked field by field; nested dataclasses from nested tables."""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    hints = get_type_hints(cls)
    values = {}
    for name, value in table.items():
        if name not in known:
            raise _unknown(cls, name, where)
        values[name] = _checked(hints[name], value, f"{where}{name}")
    for name, field in known.items():
        required = field.default is MISSING and field.default_factory is MISSING
        if required and name not in values:
            raise ConfigError(f"{where}{name} is missing")
    return cls(**values)


def _unknown(cls: type[Any], name: str, where: str) -> ConfigError:
    """The nearest field of this table, or of any other."""
    names = [*paths(cls, deep=False), *paths(cls)]
    here = {f"{where}{path}": path.rpartition(".")[2] for path in names}
    near = difflib.get_close_matches(name, here.values(), n=1, cutoff=0.75)
    exact = [path for path, last in here.items() if near and last == near[0]]
    hint = f"did you mean {exact[0]}?" if exact else f"known: {', '.join(paths(cls, deep=False))}"
    return ConfigError(f"{where}{name} is no field", hint=hint)


def paths(cls: type[Any], *, deep: bool = True) -> Iterator[str]:
    """Dotted names of all fields."""
    hints = get_type_hints(cls)
    for field in fields(cls):
        inner: type[Any] = hints[field.name]
        nested = deep and is_dataclass(inner)
        if nested:
            yield from (f"{field.name}.{path}" for path in paths(inner))
        else:
            yield field.name


def _checked(hint: Any, value: Any, where: str) -> Any:
    if is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{where} is {value!r}; it is a table")
        return build(hint, value, f"{where}.")  # type: ignore[arg-type]
    if get_origin(hint) is tuple:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise ConfigError(f"{where} is {value!r}; it is a list")
        return tuple(_checked(get_args(hint)[0], item, where) for item in value)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint in (int, float, bool, str) and type(value) is not hint:
        raise ConfigError(f"{where} is {value!r}; it must be {_TYPES[hint]}")
    if hint is float and not math.isfinite(value):
        raise ConfigError(f"{where} is {value}; it must be finite")
    return value


_TYPES = {int: "an integer", float: "a number", bool: "true or false", str: "text"}


def dump(config: Any) -> str:
    """TOML that :func:`build` reads back to the same configuration."""
    return "\n".join(_dump(config, "")).strip() + "\n"


def _dump(config: Any, where: str) -> Iterator[str]:
    values = {f.name: getattr(config, f.name) for f in fields(config)}
    tables = {n: v for n, v in values.items() if is_dataclass(v)}
    lists = {n: v for n, v in values.items() if _is_tables(v)}
    for name, value in values.items():
        if name not in tables and name not in lists:
            yield f"{name} = {_literal(value)}"
    for name, value in tables.items():
        yield f"\n[{where}{name}]"
        yield from _dump(value, f"{where}{name}.")
    for name, items in lists.items():
        for item in items:
            yield f"\n[[{where}{name}]]"
            yield from _dump(item, f"{where}{name}.")


def flat(config: Any, where: str = "") -> dict[str, Any]:
    """``{"optimizer.learning_rate": 1e-05, …}``, values that are numbers, truths or texts."""
    found: dict[str, Any] = {}
    for field in fields(config):
        value, name = getattr(config, field.name), f"{where}{field.name}"
        if is_dataclass(value):
            found |= flat(value, f"{name}.")
        else:
            found[name] = value if isinstance(value, int | float | str) else str(value)
    return found


def _is_tables(value: Any) -> bool:
    return isinstance(value, tuple) and bool(value) and all(is_dataclass(v) for v in value)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{', '.join(_literal(v) for v in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)  # a TOML basic string escapes as JSON does
    return repr(value)
