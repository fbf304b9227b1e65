"""``brim.diagnose(path)``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from brim.cli.load import judge_anew
from brim.record.findings import Diagnosis

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def diagnose(what: Paths, *, warmup: int | None = None) -> Diagnosis:
    """The account and findings of a run directory, a ``findings.json``, or traces of one job.

    ``what``: one path, or the traces of the job's ranks.  ``warmup``: steps of a run to leave out
    at its start; by default found by itself.  A run is judged anew, and the verdict is left in it
    as ``findings.json``.

    Raises :class:`brim.errors.InputError` when a path is missing or is none of these, and
    :class:`brim.errors.UsageError` for a ``warmup`` of traces.
    """
    paths = [Path(what)] if isinstance(what, (str, os.PathLike)) else [Path(p) for p in what]
    return judge_anew(paths, warmup=warmup)
