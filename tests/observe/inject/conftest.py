"""The hooks as a job imports them: their folder is on the path, brim itself is not needed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.forks import TORCH, TRANSFORMERS, Forks
from tests.observe.inject.cured import Cured, Plan, RunCured

from brim.observe.launch import INJECT
from brim.record.applied import read_applied
from brim.record.steps import read_process

sys.path.append(str(INJECT))

Hooked = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def recorder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The recorder's module with a run directory of its own, and as it was afterwards."""
    from _brim_hooks import recorder

    monkeypatch.setattr(recorder, "options", {"run_dir": str(tmp_path)})
    monkeypatch.setattr(recorder, "off", False)
    monkeypatch.setattr(recorder, "full", False)
    monkeypatch.setattr(recorder, "current", None)
    monkeypatch.setattr(recorder, "_failures", {})
    yield recorder
    if recorder.current is not None:
        recorder.current.sampler.stop()


@pytest.fixture
def records(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def _environment(records: Path, **more: str) -> dict[str, str]:
    paths = [str(INJECT), *filter(None, [more.pop("PYTHONPATH", "")])]
    return {
        **os.environ, "OMP_NUM_THREADS": "1", "BRIM_RUN_DIR": str(records), "BRIM_DEBUG": "1",
        **more, "PYTHONPATH": os.pathsep.join(paths),
    }  # fmt: skip


@pytest.fixture
def hooked(tmp_path: Path, records: Path) -> Hooked:
    """Run Python code (or ``argv``) in a process with the hooks in it; records go to ``runs``."""

    def run(
        code: str = "", *, argv: list[str] | None = None, python: str = sys.executable, **env: str
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [python, *(argv or ["-c", code])], env=_environment(records, **env),
            capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        )  # fmt: skip

    return run


@pytest.fixture
def cured(forks: Callable[..., Forks], tmp_path: Path, records: Path) -> RunCured:
    """Run a script under settings: what became of the knobs, and what each rank printed.

    Its ranks, started as torchrun starts them, have torch imported when the hooks come, which saves
    three seconds.  ``fresh``: they have not; for functions that torch has under several names.
    """

    def run(
        code: str, settings: dict[str, Any], *, alternate: dict[str, Any] | None = None,
        ranks: int = 1, fresh: bool = False, order: str | None = None, **env: str,
    ) -> Cured:  # fmt: skip
        shutil.rmtree(records)
        records.mkdir()
        (tmp_path / "job.py").write_text(code)
        if order is None:
            order = json.dumps({"settings": settings, "alternate": alternate or {}})
        modules = () if fresh else TRANSFORMERS if "transformers" in code else TORCH
        done = forks(*modules).run(
            [str(tmp_path / "job.py")], cwd=tmp_path, ranks=ranks,
            env=_environment(records, BRIM_APPLY=order, **env),
        )  # fmt: skip
        applied = [read_applied(records / f"applied.rank{rank}.jsonl") for rank in range(ranks)]
        said = [_said(rank.stdout) for rank in done]
        found = [read_process(p) for p in sorted(records.glob("steps.*.jsonl"))]
        return Cured(
            knobs=applied[0].knobs, error=applied[0].error, said=said[0],
            ranks=[(one.knobs, words) for one, words in zip(applied, said, strict=True)],
            processes=[p for p in found if p is not None],
            code=next((rank.returncode for rank in done if rank.returncode), 0),
            stderr="".join(rank.stderr for rank in done),
        )  # fmt: skip

    return run


def _said(text: str) -> dict[str, Any]:
    """The object that was printed last; empty when there is none."""
    lines = [line for line in text.splitlines() if line.startswith("{")]
    said: dict[str, Any] = json.loads(lines[-1]) if lines else {}
    return said


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """What cures of this process say goes here."""
    from _brim_hooks import cure

    made = Plan()
    monkeypatch.setattr(cure, "plan", made)
    return made
