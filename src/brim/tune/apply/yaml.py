"""One level of a YAML file, read and changed as text: comments, order and quotes stay.

LLaMA-Factory's files are flat; what is nested or spans lines is left alone.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from pathlib import Path

_NO_NEWLINE = "\\ No newline at end of file"


def _line(name: str) -> re.Pattern[str]:
    """(key and colon, space, value, space and comment) of a key at the first level."""
    return re.compile(
        rf"^({re.escape(name)}[ \t]*:)([ \t]*)([^\n#]*?)([ \t]*(?:#[^\n]*)?)$", re.MULTILINE
    )


def yaml_value(text: str, name: str) -> str | None:
    """The scalar of a key at the first level; None where it is absent or null."""
    found = _line(name).search(text)
    if found is None:
        return None
    value = found[3].strip().strip("\"'")
    return None if value in ("", "null", "~") else value


def with_values(text: str, values: Mapping[str, str | None]) -> str:
    """``text`` with keys set; None becomes ``null``."""
    for name, value in values.items():
        shown = "null" if value is None else value
        found = _line(name).search(text)
        if found is not None:
            line = f"{found[1]}{found[2] or ' '}{shown}{found[4]}"
            text = text[: found.start()] + line + text[found.end() :]
        else:
            text += ("" if not text or text.endswith("\n") else "\n") + f"{name}: {shown}\n"
    return text


def diff(path: Path, before: str, after: str) -> str:
    """A unified diff that ``patch -p1`` takes in the folder of ``path``."""
    lines = difflib.unified_diff(
        before.splitlines(keepends=True),
        after.splitlines(keepends=True),
        f"a/{path.name}",
        f"b/{path.name}",
    )
    return "".join(line if line.endswith("\n") else f"{line}\n{_NO_NEWLINE}\n" for line in lines)
