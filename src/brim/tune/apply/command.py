"""A command, read: which framework it starts, where its own arguments begin, and how to set one.

Nothing is run or imported; the user's script is only searched for the parser that it uses.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

Framework = Literal["torch", "hf-trainer", "ms-swift", "llama-factory", "lightning"]

_SWIFT_VERBS: Final = ("sft", "pt", "rlhf")
_HF_PARSERS: Final = re.compile(r"\b(HfArgumentParser|TrlParser)\s*\(")
_LIGHTNING: Final = re.compile(r"\bLightningCLI\s*\(")
_MODULES: Final[dict[str, Framework]] = {
    "swift.cli.sft": "ms-swift", "swift.cli.pt": "ms-swift", "swift.cli.rlhf": "ms-swift",
    "llamafactory.cli": "llama-factory", "llamafactory.launcher": "llama-factory",
}  # fmt: skip
_CONFIGS: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, kw_only=True, slots=True)
class Invocation:
    """What a command starts."""

    words: tuple[str, ...]
    framework: Framework = "torch"
    """Whose arguments it takes; ``torch`` where none is known to be parsed."""
    first: int = 0
    """Index in ``words`` of the program's first own argument."""
    script: Path | None = None
    config: Path | None = None
    """The framework's YAML or JSON file, when the command names one."""

    @property
    def source(self) -> str:
        """Text of the script; empty where it cannot be read."""
        return _text(self.script) if self.script is not None else ""

    @property
    def arguments(self) -> tuple[str, ...]:
        return self.words[self.first :]


def read_command(words: Sequence[str], cwd: Path) -> Invocation:
    """Launchers (``torchrun``, ``accelerate launch``, ``python -m …``) are seen through."""
    words = tuple(words)
    program = Path(words[0]).name if words else ""
    if program == "swift" and len(words) > 1 and words[1] in _SWIFT_VERBS:
        return Invocation(words=words, framework="ms-swift", first=2)
    if program in ("llamafactory-cli", "lmf") and words[1:2] == ("train",):
        return _with_config(words, "llama-factory", 2, cwd)
    at = next((i for i, w in enumerate(words) if w.endswith(".py") and i), None)
    module = _module(words)
    if module is not None and (at is None or module < at) and words[module] in _MODULES:
        return _with_config(words, _MODULES[words[module]], module + 1, cwd)
    if at is None:
        return Invocation(words=words, first=len(words))
    return _of_script(words, at, cwd)


def _module(words: Sequence[str]) -> int | None:
    """Index of the module after the last ``-m``; torchrun spells it ``-m`` or ``--module``."""
    found = [i + 1 for i, w in enumerate(words[:-1]) if w in ("-m", "--module")]
    return found[-1] if found else None


def _with_config(words: tuple[str, ...], framework: Framework, at: int, cwd: Path) -> Invocation:
    """LLaMA-Factory: a file first, then ``key=value``; or flags alone."""
    if framework == "llama-factory" and words[at : at + 1] and words[at].endswith(_CONFIGS):
        return Invocation(words=words, framework=framework, first=at + 1, config=cwd / words[at])
    return Invocation(words=words, framework=framework, first=at)


def _of_script(words: tuple[str, ...], at: int, cwd: Path) -> Invocation:
    script = cwd / words[at]
    text = _text(script)
    alone = words[at + 1 :]
    plain = Invocation(words=words, first=at + 1, script=script)
    if _LIGHTNING.search(text):
        return Invocation(words=words, framework="lightning", first=at + 1, script=script)
    only_a_file = len(alone) == 1 and alone[0].endswith(_CONFIGS)
    if _HF_PARSERS.search(text) and not only_a_file:
        return Invocation(words=words, framework="hf-trainer", first=at + 1, script=script)
    return plain


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


# ------------------------------------------------------------------------------------ arguments


def value_of(words: Sequence[str], name: str) -> str | None:
    """The value of ``--name`` (or ``--na-me``), the last one; ``true`` for a bare flag."""
    found: str | None = None
    for i, word in enumerate(words):
        flag, equals, value = word.partition("=")
        if _same(flag, name):
            following = words[i + 1] if i + 1 < len(words) else "--"
            found = value if equals else ("true" if following.startswith("--") else following)
        elif flag.startswith("--no") and _same("--" + flag[5:], name) and not equals:
            found = "false"
    return found


def with_flag(words: Sequence[str], first: int, name: str, value: str | None) -> list[str]:
    """``words`` with ``--name value`` among the arguments from ``first`` on.

    It takes the place of an earlier one, else it comes last; None takes the flag away.
    """
    kept, at = list(words[:first]), None
    i = first
    while i < len(words):
        flag, equals, _ = words[i].partition("=")
        negated = flag.startswith("--no") and _same("--" + flag[5:], name)
        if not _same(flag, name) and not negated:
            kept.append(words[i])
            i += 1
            continue
        at = len(kept) if at is None else at
        bare = bool(equals) or negated or i + 1 >= len(words) or words[i + 1].startswith("--")
        i += 1 if bare else 2
    if value is not None:
        place = len(kept) if at is None else at
        kept[place:place] = [f"--{name}", value]
    return kept


def _same(flag: str, name: str) -> bool:
    return flag.startswith("--") and flag[2:].replace("-", "_") == name.replace("-", "_")


def assigned(words: Sequence[str], name: str) -> str | None:
    """The value of ``name=value``."""
    found = [w.partition("=")[2] for w in words if w.startswith(f"{name}=")]
    return found[-1] if found else None


def with_assignment(words: Sequence[str], first: int, name: str, value: str) -> list[str]:
    """``words`` with ``name=value`` among the arguments from ``first`` on, once."""
    kept = [w for w in words[first:] if not w.startswith(f"{name}=")]
    return [*words[:first], *kept, f"{name}={value}"]
