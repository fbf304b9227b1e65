"""Where a folder lives: which file system, on which kind of disk, how full."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from brim.errors import InputError

ROOT = Path("/")

Kind = Literal["memory", "local", "network", "overlay", "unknown"]

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "9p", "afs",
     "virtiofs", "wekafs", "panfs", "pvfs2", "orangefs"}
)  # fmt: skip
_MEMORY = frozenset({"tmpfs", "ramfs", "hugetlbfs"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """The storage behind a folder."""

    folder: Path
    mount: Path
    file_system: str
    source: str
    """Device or server as the kernel names it, without credentials."""
    kind: Kind
    rotational: bool | None
    """A spinning disk; None where it is no local disk or the kernel does not say."""
    free_bytes: int
    total_bytes: int
    remark: str = ""


def storage_of(folder: Path, *, root: Path = ROOT) -> Storage:
    """Raises :class:`InputError` when the folder does not exist.

    ``root`` holds ``proc`` and ``sys`` (for tests); ``folder`` is always a real one.
    """
    try:
        real = folder.resolve(strict=True)
        space = os.statvfs(real)
    except OSError as error:
        raise InputError(f"{folder}: {error.strerror}") from None
    mounts = sorted(_mounts(root), key=lambda m: len(m[0].parts))
    under = [m for m in mounts if real.is_relative_to(m[0])]
    mount, file_system, source, device = under[-1] if under else (ROOT, "", "", "")
    kind = _kind(file_system)
    return Storage(
        folder=real,
        mount=mount,
        file_system=file_system or "unknown",
        source=_without_login(source),
        kind=kind,
        rotational=_rotational(device, source, root) if kind == "local" else None,
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
        remark=_remark(kind, file_system),
    )


def _mounts(root: Path) -> Iterator[tuple[Path, str, str, str]]:
    """(mount point, file system, source, major:minor) of each mount; see proc(5)."""
    try:
        text = (root / "proc/self/mountinfo").read_text(errors="replace")
    except OSError:
        return
    for line in text.splitlines():
        left, separator, right = line.partition(" - ")
        fields, tail = left.split(" "), right.split(" ")
        if separator and len(fields) >= 5 and len(tail) >= 2:
            yield Path(_unescape(fields[4])), tail[0], _unescape(tail[1]), fields[2]


def _unescape(text: str) -> str:
    """mountinfo writes a space as ``\\040``."""
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _kind(file_system: str) -> Kind:
    if file_system in _NETWORK or file_system.startswith("fuse."):
        return "network"
    if file_system in _MEMORY:
        return "memory"
    if file_system == "overlay":
        return "overlay"
    return "local" if file_system else "unknown"


def _rotational(device: str, source: str, root: Path) -> bool | None:
    """The disk's flag; a partition's is its parent's.  Virtual disks say anything."""
    if source.startswith(("/dev/vd", "/dev/xvd")):
        return None
    node = root / "sys/dev/block" / device
    for flag in (node / "queue/rotational", node / "../queue/rotational"):
        try:
            return flag.read_text().strip() == "1"
        except OSError:
            continue
    return None


def _without_login(source: str) -> str:
    """``//user:password@server/share`` → ``//server/share``."""
    head, at, tail = source.rpartition("@")
    return head[: head.find("//") + 2] + tail if at and "//" in head else source


def _remark(kind: Kind, file_system: str) -> str:
    if kind == "network":
        what = "a FUSE mount" if file_system.startswith("fuse.") else "a network file system"
        return f"{what}: more loader workers hide its latency, not its bandwidth"
    if kind == "memory":
        return "in memory: data here takes RAM from the page cache"
    if kind == "overlay":
        return "a container's layer: keep data on a mounted volume"
    return ""
