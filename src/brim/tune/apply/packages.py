"""What the job's Python has installed: a knob whose package is missing needs no run to say so."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from brim.tune.knobs import Value

_NEEDS: Final[Mapping[tuple[str, Value], str]] = {
    ("liger", True): "liger-kernel",
    ("attention.implementation", "flash_attention_2"): "flash-attn",
    ("attention.implementation", "flash_attention_3"): "flash-attn-3",
    ("attention.implementation", "flash_attention_4"): "flash-attn-4",
}
_HUB: Final = "kernels"
"""With it, transformers fetches attention kernels that are not installed."""
_LIST: Final = """
import importlib.metadata as m, json, sys
def there(name):
    try:
        return bool(m.version(name))
    except m.PackageNotFoundError:
        return False
print(json.dumps([name for name in sys.argv[1:] if there(name)]))
"""
_PATIENCE_S: Final = 30.0


def lacking(command: Sequence[str]) -> dict[tuple[str, Value], str]:
    """(knob, value) → why it cannot be applied; empty where the command names no Python."""
    python = shutil.which(command[0]) if command else None
    if python is None or not Path(python).name.startswith("python"):
        return {}
    there = _installed(python)
    if there is None:
        return {}
    return {
        key: f"the package {name} is not installed"
        for key, name in _NEEDS.items()
        if name not in there and not (key[0] == "attention.implementation" and _HUB in there)
    }


def _installed(python: str) -> set[str] | None:
    """Of the packages above; None where that Python does not answer."""
    try:
        found = subprocess.run(
            [python, "-c", _LIST, *_NEEDS.values(), _HUB],
            capture_output=True, text=True, check=True, timeout=_PATIENCE_S,
        )  # fmt: skip
        return set(json.loads(found.stdout))
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
