"""``with brim.observe(): …``: measure what this process trains, without a launcher."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from brim import __version__
from brim.cli.measured import host_facts, judge
from brim.errors import InputError, UsageError
from brim.observe import inside
from brim.observe.inside import Inside
from brim.observe.launch import Options
from brim.record import run as runs
from brim.record.findings import Diagnosis

RUNS = Path("runs")


@dataclass(kw_only=True)
class Observation:
    """What a ``with brim.observe()`` block is given, and holds when it is over."""

    folder: Path | None
    """The run directory; None where nothing is recorded (see ``why_none``)."""
    why_none: str = ""
    diagnosis: Diagnosis | None = None
    """After the block, on rank 0; None inside it, and when the block ended with an error."""


@contextlib.contextmanager
def observe(
    run_dir: str | os.PathLike[str] | None = None, *, steps: int = 100, warmup: int | None = None
) -> Iterator[Observation]:
    """Measure the training steps inside the block, as ``brim diagnose -- COMMAND`` does.

    ``run_dir``: the folder that becomes the run directory; None: a new one under ``runs``.  In a
    job of several ranks each rank enters the block: with a process group, rank 0 chooses the
    folder for all; without one ``run_dir`` must be given.  ``steps``, ``warmup``: as the options
    of ``brim diagnose``.

    Under ``brim diagnose``, and inside another block, nothing is recorded twice: the block runs,
    and ``why_none`` says so.  An error in the block passes through; the records stay.

    Raises :class:`brim.errors.InputError` when the folder cannot be made or holds a run already.
    """
    if inside.is_measured():
        yield Observation(folder=None, why_none="this process is measured by brim already")
        return
    folder = _folder(Path(run_dir) if run_dir is not None else None)
    seen = Observation(folder=folder)
    measurement = Inside(folder, Options(steps=steps, warmup=warmup))
    measurement.start(beside=inside.local_rank() == 0)
    code = 1
    try:
        yield seen
        code = 0
    finally:
        measurement.stop()
        if inside.rank() == 0:
            runs.finish(folder, exit_code=code, wall_s=measurement.wall_s)
            seen.diagnosis = judge(folder, warmup=warmup) if code == 0 else None


def _folder(asked: Path | None) -> Path:
    """The run directory, the same on all ranks; rank 0 makes it.  All ranks fail, or none."""
    if asked is None and inside.world() > 1 and not inside.grouped():
        raise UsageError(
            "the ranks of this job have no process group yet, so they cannot agree on a folder",
            hint="name it: brim.observe(folder), or call it after init_process_group",
        )
    folder, error = asked, None
    if inside.rank() == 0:
        try:
            folder = _made(asked)
        except InputError as failed:
            folder, error = None, failed
    folder = inside.agreed(folder)
    if error is not None:
        raise error
    if folder is None:
        raise InputError("rank 0 could not make the run directory")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # other hosts, other disks
    return folder


def _made(asked: Path | None) -> Path:
    command = [Path(sys.executable).name, *sys.argv]
    try:
        if asked is None:
            return runs.create(RUNS, command, host_facts(), __version__)
        runs.create_at(asked, command, host_facts(), __version__)
    except OSError as error:
        raise InputError(
            f"{asked or RUNS}: cannot make a run directory ({error.strerror})",
            hint="give brim.observe another folder",
        ) from None
    return asked
