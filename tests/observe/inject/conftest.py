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
def hooked(tmp_path: Path) -> Hooked:
    """Run Python code (or ``argv``) in a process with the hooks in it; records go to ``runs``."""
    runs = tmp_path / "runs"
    runs.mkdir()

    def run(
        code: str = "", *, argv: list[str] | None = None, python: str = sys.executable, **env: str
    ) -> subprocess.CompletedProcess[str]:
        paths = [str(INJECT), *filter(None, [env.pop("PYTHONPATH", "")])]
        return subprocess.run(
            [python, *(argv or ["-c", code])],
            env={**os.environ, "OMP_NUM_THREADS": "1", "BRIM_RUN_DIR": str(runs),
                 "BRIM_DEBUG": "1", **env, "PYTHONPATH": os.pathsep.join(paths)},
            capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path,
        )  # fmt: skip

    return run


@pytest.fixture
def cured(hooked: Hooked, tmp_path: Path) -> RunCured:
    """Run a script under settings: what became of the knobs, and what it printed."""

    def run(
        code: str, settings: dict[str, Any], *, alternate: dict[str, Any] | None = None,
        argv: list[str] | None = None, order: str | None = None, **env: str,
    ) -> Cured:  # fmt: skip
        runs, path = tmp_path / "runs", tmp_path / "cured_job.py"
        shutil.rmtree(runs)
        runs.mkdir()
        path.write_text(code)
        if order is None:
            order = json.dumps({"settings": settings, "alternate": alternate or {}})
        done = hooked(argv=[*(argv or []), str(path)], BRIM_APPLY=order, **env)
        lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
        applied = read_applied(runs / "applied.rank0.jsonl")
        found = [read_process(p) for p in sorted(runs.glob("steps.*.jsonl"))]
        return Cured(
            knobs=applied.knobs, error=applied.error,
            said=json.loads(lines[-1]) if lines else {},
            processes=[p for p in found if p is not None],
            code=done.returncode, stderr=done.stderr,
        )  # fmt: skip

    return run


@pytest.fixture
def plan(monkeypatch: pytest.MonkeyPatch) -> Plan:
    """What cures of this process say goes here."""
    from _brim_hooks import cure

    made = Plan()
    monkeypatch.setattr(cure, "plan", made)
    return made
