"""What verbs that measure a command share: the facts of the host, and the judging of records."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import InputError
from brim.record import findings
from brim.record.findings import Diagnosis
from brim.record.run import Run, read_run

if TYPE_CHECKING:
    from brim.diagnose.live.account import Rank


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
    from brim.diagnose.live.account import diagnose_run, look

    run = read_run(folder)
    found = look(run, warmup=warmup)
    diagnosis = _with_device(run, found) or diagnose_run(run, found)
    with contextlib.suppress(OSError):  # a read-only or full disk costs the file, not the verdict
        findings.write(folder / "findings.json", diagnosis)
    return diagnosis


def _with_device(run: Run, found: Sequence[Rank]) -> Diagnosis | None:
    """The account of a device, where the profiler window was recorded."""
    if not run.traces or not found or found[0].evidence.process.device is None:
        return None
    from brim.diagnose.live.device import context, on_device
    from brim.diagnose.trace import diagnose_traces
    from brim.record.kineto import read_traces

    try:
        traces = read_traces(run.traces)
        traced = diagnose_traces(traces, context=context(found, peak_flops=_peak(found[0])))
    except InputError as error:
        run.notes.append(f"the profiler window could not be used: {error}")
        return None
    return on_device(run, found, traced)


def _peak(rank: Rank) -> float | None:
    """Dense bf16 peak of the rank's device in FLOP/s; None where the table does not know it."""
    from brim.hardware.gpus import identify, peak_flops

    device = rank.evidence.process.device
    assert device is not None
    gpu = identify(
        name=str(device["name"]),
        capability=(int(device["capability"][0]), int(device["capability"][1])),
        sm_count=int(device["sm_count"]),
        memory_bytes=int(device["memory"]),
    )
    return peak_flops(gpu, "bf16") if gpu is not None else None
