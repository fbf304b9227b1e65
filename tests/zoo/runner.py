"""Runs an arm of a case, alone or under ``brim diagnose``."""

from __future__ import annotations

import functools
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from case import Arm, Case
from tests.forks import TRANSFORMERS, Forks

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
LONGEST_S = 180.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run without brim."""

    wall_s: float
    cpu_s: float
    foreign: float
    """Share of the machine's CPU time that others took, or the hypervisor kept, meanwhile."""


def command(case: Case, arm: Arm, data: Path, steps: int = 0) -> list[str]:
    launcher = [sys.executable]
    if case.ranks > 1:
        launcher += ["-m", "torch.distributed.run", "--standalone"]
        launcher += ["--nproc-per-node", str(case.ranks)]
    return [*arm.prefix, *launcher, str(SCRIPTS / case.script), *options(arm, data, steps)]


def options(arm: Arm, data: Path, steps: int = 0) -> list[str]:
    """What a script is started with; ``steps`` 0: its own number."""
    length = ["--steps", str(steps)] if steps else []
    return ["--arm", arm.name, "--data", str(data), *length]


def environment(arm: Arm, **more: str) -> dict[str, str]:
    return {**os.environ, **arm.environment, **more}


def measure(case: Case, arm: Arm, data: Path, steps: int) -> Run:
    """Wall and CPU time of one run; raises ``RuntimeError`` when it fails."""
    _forks().ready()
    cpu, machine, begin = _scripts_cpu(), _machine_busy(), time.monotonic()
    (_cold if arm.prefix or arm.environment else _forked)(case, arm, data, steps)
    wall, cpu = time.monotonic() - begin, _scripts_cpu() - cpu
    foreign = (_machine_busy() - machine - cpu) / (wall * (os.cpu_count() or 1))
    return Run(wall_s=wall, cpu_s=cpu, foreign=max(0.0, foreign))


def _cold(case: Case, arm: Arm, data: Path, steps: int) -> None:
    """What the environment sets must be there before the imports."""
    done = subprocess.run(
        command(case, arm, data, steps), env=environment(arm), cwd=data, check=False,
        timeout=LONGEST_S, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"{case.id} {arm.name} ended with {done.returncode}: {done.stderr}")


def _forked(case: Case, arm: Arm, data: Path, steps: int) -> None:
    """Without the seconds of importing, so that many pairs can be measured."""
    argv = [str(SCRIPTS / case.script), *options(arm, data, steps)]
    for done in _forks().run(argv, cwd=data, env=os.environ, ranks=case.ranks, timeout=LONGEST_S):
        if done.returncode:
            raise RuntimeError(f"{case.id} {arm.name} failed: {done.stderr[-2000:]}")


@functools.cache
def _forks() -> Forks:
    return Forks(*TRANSFORMERS)


def diagnose(case: Case, arm: Arm, data: Path) -> dict[str, Any]:
    """What ``findings.json`` says about one run, after checking that the job ended well."""
    out = data / "findings.json"
    out.unlink(missing_ok=True)
    brim = [sys.executable, "-m", "brim", "diagnose", "--runs", str(data / "runs")]
    done = subprocess.run(
        [*brim, "--json", str(out), "--", *command(case, arm, data)],
        env=environment(arm, PYTHONPATH=str(ROOT / "src")), cwd=data, check=False,
        timeout=LONGEST_S, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def verdict(found: dict[str, Any]) -> str | None:
    return found["findings"][0]["cause"] if found["findings"] else None


def _scripts_cpu() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime + _forks().cpu_s


def _machine_busy() -> float:
    """Seconds of all cores that were not idle, stolen ones included; absent counts as 0."""
    try:
        fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    except OSError:
        return 0.0
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
