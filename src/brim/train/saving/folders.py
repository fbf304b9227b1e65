"""Folders of checkpoints: what is valid, what is unfinished, what may go.

::

    checkpoints/
        step-00000500/                  manifest.json lists every file's size and CRC-32
        step-00000600.<token>.tmp/      being written; means nothing

Standard library only: the process that writes checkpoints runs without any package.
"""

from __future__ import annotations

import json
import re
import shutil
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

MANIFEST = "manifest.json"
FORMAT = 2
_NAME = re.compile(r"step-(\d{8,})")
_BLOCK = 1 << 22


def name_of(step: int) -> str:
    return f"step-{step:08d}"


def finished(folder: Path) -> list[Path]:
    """Folders with the name of a checkpoint, oldest step first; valid or not."""
    if not folder.is_dir():
        return []
    found = [(int(m[1]), p) for p in folder.iterdir() if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


def manifest(path: Path) -> dict[str, dict[str, int]]:
    """File name → its size and checksum.  Raises OSError or ValueError."""
    found: Any = json.loads((path / MANIFEST).read_bytes())
    if not isinstance(found, dict) or not found:
        raise ValueError(f"{path / MANIFEST} is no manifest")
    files: Any = found["files"] if found.get("format") == FORMAT else found  # format 1 was flat
    if not isinstance(files, dict):
        raise ValueError(f"{path / MANIFEST} lists no files")
    return files


def valid(path: Path) -> bool:
    """Whether the manifest is there and every file has its size."""
    try:
        return all(
            Path(name).parts[0] != ".." and (path / name).stat().st_size == entry["size"]
            for name, entry in manifest(path).items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False


def damaged(path: Path, *, part: int = 0, parts: int = 1) -> list[str]:
    """Files whose bytes are not those of the manifest; only every ``parts``-th file is read."""
    listed = sorted(manifest(path).items())[part::parts]
    with ThreadPoolExecutor(4) as pool:  # zlib lets go of the interpreter's lock
        sums = list(pool.map(lambda item: checksum(path / item[0]), listed))
    return [
        name for (name, entry), found in zip(listed, sums, strict=True) if found != entry["crc32"]
    ]


def checksum(path: Path) -> int | None:
    """CRC-32 of a file; None when it cannot be read."""
    crc = 0
    try:
        with path.open("rb") as f:
            while block := f.read(_BLOCK):
                crc = zlib.crc32(block, crc)
    except OSError:
        return None
    return crc


def newest(folder: Path) -> Path | None:
    """The newest valid checkpoint; damaged and unfinished ones are passed over."""
    return next((path for path in reversed(finished(folder)) if valid(path)), None)


def clear_unfinished(folder: Path, *, keep: Path | None = None) -> None:
    """Delete what was being written when a run ended."""
    for path in folder.glob("step-*.tmp"):
        if path != keep:
            shutil.rmtree(path, ignore_errors=True)


def purge(folder: Path, keep: int) -> None:
    """Delete the oldest until ``keep`` valid ones are left; what is not valid stays untouched."""
    for path in [p for p in finished(folder) if valid(p)][:-keep]:
        delete(path)


def delete(path: Path) -> None:
    """Take its name first: should the deletion be cut off, the next start clears the rest."""
    gone = path.with_name(f"{path.name}.gone.tmp")
    path.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def size(path: Path) -> int:
    """Bytes of all files."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file())
