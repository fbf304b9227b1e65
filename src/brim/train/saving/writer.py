"""The process that writes checkpoints: from shared memory to durable files.

It runs beside a trainer, with the standard library only: it starts in milliseconds, needs no memory
of its own, never holds the trainer's interpreter lock, and ends when the trainer does.  Requests
and replies are lines of JSON on its standard input and output::

    {"do": "write", "folder", "need", "files": [{"name", "header", "start", "stop"}],
     "texts": {name: text}}                  some of this rank's files
    {"do": "part", "folder", "name"}         what it wrote, for the manifest
    {"do": "commit", "folder", "target", "parts", "about", "keep"}      the first rank's
    {"do": "abort", "folder"}                the first rank's

Order of a checkpoint: every file is made durable, then the parts, then the manifest, then the
folder is renamed and the rename made durable.  Only then are older ones deleted.
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import json
import mmap
import os
import shutil
import signal
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.files import fsync_folder, write_atomic
from brim.train.saving import folders

_BLOCK = 1 << 24
_DIRTY = 1 << 30
"""Bytes between two syncs: more would make the kernel throttle others who write."""
_MARGIN = 1.05
_SEEN_S = 30.0
"""Network file systems show a new file of another host this late."""
_PR_SET_PDEATHSIG = 1


class Share:
    """The files of one rank."""

    def __init__(self, memory: memoryview) -> None:
        self._memory = memory
        self._files: dict[str, dict[str, int]] = {}

    def write(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Write files.  On an error all of this rank's are deleted, and OSError is raised."""
        folder = Path(request["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        try:
            _check_space(folder, request["need"])
            for file in request["files"]:
                self._files[file["name"]] = {}
                self._files[file["name"]] = _write_file(folder, file, self._memory)
            for name, text in request["texts"].items():
                self._files[name] = _write_text(folder / name, text)
        except OSError:
            for name in self._files:
                with contextlib.suppress(OSError):
                    (folder / name).unlink(missing_ok=True)
            self._files = {}
            raise
        return {}

    def part(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Say what was written; that makes the names of the files durable too."""
        path = Path(request["folder"]) / request["name"]
        files, self._files = self._files, {}
        write_atomic(path, json.dumps(files).encode())
        return {"bytes": sum(entry["size"] for entry in files.values())}


def commit(request: Mapping[str, Any]) -> dict[str, Any]:
    """Join the parts in the manifest, and give the folder its name."""
    folder, target = Path(request["folder"]), Path(request["target"])
    files: dict[str, Any] = {}
    parts = [folder / name for name in request["parts"]]
    for path in parts:
        files |= json.loads(_seen(path))
    for path in parts:
        path.unlink()
    listed = {**request["about"], "format": folders.FORMAT, "files": files}
    write_atomic(folder / folders.MANIFEST, json.dumps(listed, indent=1).encode())
    if target.exists():  # a damaged one of the same step
        folders.delete(target)
    folder.rename(target)
    fsync_folder(target.parent)
    folders.purge(target.parent, request["keep"])
    return {"path": str(target)}


def abort(request: Mapping[str, Any]) -> dict[str, Any]:
    """Leave nothing of an unfinished checkpoint."""
    shutil.rmtree(request["folder"], ignore_errors=True)
    return {}


def _check_space(folder: Path, need: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < need * _MARGIN:
        raise OSError(
            f"{folder.parent} has {free / 1e9:.1f} GB free; a checkpoint takes {need / 1e9:.1f} GB"
        )


def _write_file(folder: Path, file: Mapping[str, Any], memory: memoryview) -> dict[str, int]:
    crc = length = unsynced = 0
    with (folder / file["name"]).open("wb", buffering=0) as f:
        for block in _blocks(
            base64.b64decode(file["header"]), memory[file["start"] : file["stop"]]
        ):
            crc = zlib.crc32(block, crc)
            written = 0
            while written < len(block):  # a write may take less than it was given
                written += f.write(block[written:])
            length += len(block)
            unsynced += len(block)
            if unsynced >= _DIRTY:
                os.fdatasync(f.fileno())
                unsynced = 0
        os.fsync(f.fileno())
    return {"size": length, "crc32": crc}


def _blocks(header: bytes, data: memoryview) -> Sequence[memoryview]:
    cuts = range(0, len(data), _BLOCK)
    return [memoryview(header), *(data[start : start + _BLOCK] for start in cuts)]


def _write_text(path: Path, text: str) -> dict[str, int]:
    data = text.encode()
    write_atomic(path, data)
    return {"size": len(data), "crc32": zlib.crc32(data)}


def _seen(path: Path) -> bytes:
    deadline = time.monotonic() + _SEEN_S
    while True:
        try:
            return path.read_bytes()
        except FileNotFoundError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def serve(memory: memoryview) -> None:
    """Answer requests until the input ends."""
    share = Share(memory)
    actions = {"write": share.write, "part": share.part, "commit": commit, "abort": abort}
    for line in sys.stdin:
        request = json.loads(line)
        reply: dict[str, Any] = {"id": request["id"]}
        try:
            reply |= actions[request["do"]](request)
        except Exception as error:  # whatever it was, the trainer goes on and says it
            reply["error"] = str(error) or type(error).__name__
        print(json.dumps(reply), flush=True)


def main(parent: int, fd: int) -> None:
    """The process of the trainer ``parent``, whose memory file ``fd`` is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        return  # the trainer ended before the line above
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # meant for the trainer, which closes the input
    os.nice(5)
    serve(memoryview(mmap.mmap(fd, 0, prot=mmap.PROT_READ)))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
