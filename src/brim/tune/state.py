"""The folder of a search: its log of runs, the runs themselves, and for which job they are."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from brim.errors import InputError, UsageError
from brim.files import write_atomic
from brim.record.run import scrub, slug
from brim.tune.trials import FILE

VERSION = 1
_JOB = "job.json"


class _Job(msgspec.Struct, kw_only=True):
    version: int = VERSION
    command: list[str]
    """Secrets are replaced by ``***``."""
    identity: str
    """Of the whole command, its working directory and the window: other runs do not compare."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A search's folder, ready to be used."""

    path: Path

    @property
    def log(self) -> Path:
        return self.path / FILE

    @property
    def runs(self) -> Path:
        return self.path / "runs"


def identity(command: Sequence[str], steps: int) -> str:
    """The same for the same job in the same place, measured alike."""
    said = json.dumps([str(Path.cwd()), list(command), steps])
    return hashlib.sha256(said.encode()).hexdigest()


def default_path(command: Sequence[str], steps: int) -> Path:
    """``runs/tune-train-1a2b3c4d``: one for each job."""
    return Path("runs") / f"tune-{slug(command)}-{identity(command, steps)[:8]}"


def open_folder(path: Path, command: Sequence[str], steps: int, *, fresh: bool) -> Folder:
    """The folder, made where there is none; its log stays unless ``fresh``.

    Raises :class:`UsageError` when it belongs to another job, and :class:`InputError` when it
    cannot be used.
    """
    mine = _Job(command=scrub(command), identity=identity(command, steps))
    folder = Folder(path)
    try:
        if fresh:
            _forget(folder)
        known = _known(path)
        if known is not None and known.identity != mine.identity:
            raise UsageError(
                f"{path} holds the search for another job: {' '.join(known.command)}",
                hint="give --dir another folder, or --fresh to forget what is in it",
            )
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if known is None:
            write_atomic(path / _JOB, msgspec.json.encode(mine))
    except OSError as error:
        raise InputError(f"{path}: cannot be used ({error.strerror})") from None
    return folder


def _known(path: Path) -> _Job | None:
    file = path / _JOB
    if not file.exists():
        if path.is_dir() and any(path.iterdir()):
            raise UsageError(f"{path} is not empty, and no search of brim tune is in it",
                             hint="give --dir a new folder")  # fmt: skip
        return None
    try:
        job = msgspec.json.decode(file.read_bytes(), type=_Job)
    except msgspec.DecodeError as error:
        raise InputError(f"{file}: cannot be read ({error})") from None
    if job.version != VERSION:
        raise InputError(f"{path} was made by another version of brim", hint="give --fresh")
    return job


def _forget(folder: Folder) -> None:
    """Only what a search makes: a mistaken --dir must not cost anything else."""
    if not (folder.path / _JOB).exists():
        return
    shutil.rmtree(folder.runs, ignore_errors=True)
    for file in (folder.log, folder.path / _JOB):
        file.unlink(missing_ok=True)
