"""Anything that brim can judge → a diagnosis."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from brim.errors import InputError, UsageError

if TYPE_CHECKING:
    from brim.record.findings import Diagnosis

_FINDINGS = "findings.json"


def load_diagnosis(paths: Sequence[Path]) -> Diagnosis:
    """The diagnosis of a ``findings.json``, a run directory, or the traces of one job.

    A run directory that was judged before is not judged again.  Several paths are the traces of
    the ranks of one job.

    Raises :class:`InputError` when a path is missing or is none of these, :class:`UsageError`
    without a path.
    """
    if not paths:
        raise UsageError("nothing to read", hint="give a run directory, a findings.json or a trace")
    for path in paths:
        if not path.exists():
            raise InputError(f"{path}: no such file or folder")
    saved = _saved(paths)
    if saved is not None:
        from brim.record import findings

        return findings.read(saved)
    return _run(paths[0]) if _is_run(paths) else _traces(paths)


def judge_anew(paths: Sequence[Path], *, warmup: int | None = None) -> Diagnosis:
    """As :func:`load_diagnosis`, but a run directory is judged again; ``warmup`` steps of it are
    left out (None: found by itself).

    Raises :class:`UsageError` for a ``warmup`` of what has no steps to leave out.
    """
    if _is_run(paths):
        return _run(paths[0], warmup)
    if paths and warmup is not None:
        raise UsageError(
            f"a warm-up is steps of a run, and {paths[0]} is no run directory", hint="leave it out"
        )
    return load_diagnosis(paths)


def _saved(paths: Sequence[Path]) -> Path | None:
    """The findings.json that ``paths`` name, if they do."""
    found = [p / _FINDINGS if p.is_dir() else p for p in paths]
    found = [p for p in found if p.is_file() and _is_findings(p)]
    if found and len(paths) > 1:
        raise UsageError(
            f"{found[0]} is a verdict, and several paths were given",
            hint="several paths are the traces of one job's ranks; brim compare A B compares two",
        )
    return found[0] if found else None


def _is_findings(path: Path) -> bool:
    """By its name, or by its first key: a trace is JSON too, and may hold gigabytes."""
    if path.name == _FINDINGS:
        return True
    from brim.record.findings import Diagnosis

    with path.open("rb") as file:
        head = file.read(256).lstrip(b"\xef\xbb\xbf \t\r\n{")
    key = head.split(b'"')[1] if head.startswith(b'"') and head.count(b'"') > 1 else b""
    return key.decode(errors="replace") in Diagnosis.__struct_fields__


def _is_run(paths: Sequence[Path]) -> bool:
    from brim.record.run import is_run

    return len(paths) == 1 and is_run(paths[0])


def _run(folder: Path, warmup: int | None = None) -> Diagnosis:
    from brim.cli.measured import judge

    return judge(folder, warmup=warmup)


def _traces(paths: Sequence[Path]) -> Diagnosis:
    from brim.diagnose.remedies import attach
    from brim.diagnose.trace import diagnose_traces
    from brim.record.kineto import read_traces

    return attach(diagnose_traces(read_traces(paths)))
