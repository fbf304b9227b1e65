"""The hooks in the process that calls, where no command is started: what ``brim.observe`` does.

The same hooks as under ``brim diagnose``, armed after the program's imports instead of before
them.  Processes that are started meanwhile (loader workers, ranks) inherit them through the
environment, which is put back at the end.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from brim.observe.launch import INJECT, Options, environment

_VARIABLES = ("PYTHONPATH", "BRIM_RUN_DIR", "BRIM_OPTIONS")
ENDED = "the observed part ended"


class Inside:
    """One measurement of this process; a second one can follow, but not overlap."""

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self._options = options
        self._before: dict[str, str | None] = {}
        self._beside: subprocess.Popen[bytes] | None = None
        self._began = time.monotonic()

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._began

    def start(self, *, beside: bool) -> None:
        """``beside``: sample devices and host from a process of its own (one a host does)."""
        self._before = {name: os.environ.get(name) for name in _VARIABLES}
        armed = environment(self.folder, self._options)
        os.environ.update({name: armed[name] for name in _VARIABLES})
        _hooks().boot.start()
        if beside:
            self._beside = _sampler(self.folder)

    def stop(self) -> None:
        """Write what is open; the hooks pass through from here on."""
        hooks = _hooks()
        if hooks.recorder.current is not None:
            hooks.window.leave(hooks.recorder.current, ENDED)
        hooks.recorder.off = True
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        if self._beside is not None:
            _end(self._beside)


def is_measured() -> bool:
    """Is this process under ``brim diagnose``, or inside another ``observe``?"""
    hooks = sys.modules.get("_brim_hooks.recorder")
    return hooks is not None and bool(hooks.options) and not hooks.off


def rank() -> int:
    """This process's rank: the process group's, else the launcher's, else 0."""
    group = _group()
    return int(group.get_rank()) if group is not None else _number("RANK", 0)


def world() -> int:
    group = _group()
    return int(group.get_world_size()) if group is not None else _number("WORLD_SIZE", 1)


def local_rank() -> int:
    return _number("LOCAL_RANK", 0)


def grouped() -> bool:
    """Is there a process group through which ranks can agree?"""
    return _group() is not None


def agreed(folder: Path | None) -> Path | None:
    """Rank 0's folder on every rank, where a process group can carry it; else what was given."""
    group = _group()
    if group is None or world() == 1:
        return folder
    box = [str(folder) if folder is not None else None]
    group.broadcast_object_list(box, src=0)
    return Path(box[0]) if box[0] is not None else None


def _group() -> Any:
    """``torch.distributed`` when a process group is there; torch is never imported for it."""
    module = sys.modules.get("torch.distributed")
    there = module is not None and module.is_available() and module.is_initialized()
    return module if there else None


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


def _hooks() -> ModuleType:
    """The package of the hooks, with the modules that are needed here."""
    if str(INJECT) not in sys.path:
        sys.path.append(str(INJECT))  # last: nothing of the program's is shadowed
    import _brim_hooks
    from _brim_hooks import boot, recorder, window

    assert boot and recorder and window
    return _brim_hooks


def _sampler(folder: Path) -> subprocess.Popen[bytes] | None:
    """A process that samples until its standard input closes, at the latest with this process."""
    command = [sys.executable, "-m", "brim.observe.beside", str(folder), str(os.getpid())]
    env = {**os.environ, "BRIM_RUN_DIR": ""}  # it is no part of the job
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
    return None


def _end(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        process.communicate(timeout=5.0)
    if process.poll() is None:  # a driver that hangs
        process.kill()
