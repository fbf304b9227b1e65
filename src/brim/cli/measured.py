"""What the verbs share that measure a command: the host's facts, and the judging of what was recorded."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from brim.record import findings
from brim.record.findings import Diagnosis
from brim.record.run import Run, read_run


def host_facts() -> dict[str, Any]:
    """Cores and memory of this machine, as the run directory keeps them."""
    import platform

    import psutil

    from brim.hardware.cores import usable_cores

    cores = usable_cores()
    return {
        "cores": cores.machine,
        "usable": cores.usable,
        "quota": cores.quota,
        "limits": list(cores.reasons),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
    }


def judge(folder: Path, *, warmup: int | None = None) -> Diagnosis:
    """Read a run directory, diagnose it, and leave ``findings.json`` in it."""
    from brim.diagnose.live.account import diagnose_run

    run: Run = read_run(folder)
    diagnosis = diagnose_run(run, warmup=warmup)
    with contextlib.suppress(OSError):  # a read-only or full disk costs the file, not the verdict
        findings.write(folder / "findings.json", diagnosis)
    return diagnosis
