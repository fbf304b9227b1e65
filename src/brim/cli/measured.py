"""What verbs that measure a command share: the facts of the host, and the judging of records."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim import __version__
from brim.errors import BrimError, InputError
from brim.record import findings
from brim.record.findings import Diagnosis
from brim.record.run import Run, create, is_ending, is_measured, read_run

if TYPE_CHECKING:
    from brim.diagnose.live.account import Rank

GRACE_S = 2.0
"""A job that ends so soon after its last measured step does not run on."""


def host_facts() -> dict[str, Any]:
    """Cores, memory and network of this machine, as the run directory keeps them."""
    import os
    import platform
    from dataclasses import asdict

    import psutil

    from brim.hardware.cores import usable_cores
    from brim.hardware.fabric import fabric
    from brim.hardware.nccl import file_definitions

    cores = usable_cores()
    return {
        "cores": cores.machine,
        "usable": cores.usable,
        "quota": cores.quota,
        "limits": list(cores.reasons),
        "memory": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.machine()}",
        "fabric": asdict(fabric()),
        "nccl": (files := file_definitions(os.environ)),
        "matmul_flops": _measured_products(),
        "devices_joined": _devices_joined([*os.environ, *(name for name, _, _ in files)]),
    }


def new_run(runs: Path, command: Sequence[str]) -> Path:
    """A run directory below ``runs`` for a command that is about to start on this machine.

    Raises :class:`InputError` when it cannot be made.
    """
    try:
        return create(runs, command, host_facts(), __version__)
    except OSError as error:
        raise InputError(
            f"{runs}: cannot make a run directory ({error.strerror})",
            hint="choose another place with --runs DIR",
        ) from None


def _measured_products() -> dict[str, dict[str, float]]:
    """Device → format → FLOP/s that ``brim hw --measure`` found on this machine; often empty."""
    from brim.hardware import attainable

    store = attainable.load()
    names = {device.name for device in store.devices}
    return {name: figures.matmul_flops for name in names if (figures := store.device(name))}


def _devices_joined(variables: Sequence[str]) -> bool | None:
    """Asked of the driver only where a variable keeps devices from reaching each other."""
    if not any(name.startswith("NCCL_P2P_") for name in variables):
        return None
    from brim.hardware.links import joined, links

    return joined(links())


class Early:
    """Prints the verdict as soon as the steps are measured, while the job runs on."""

    def __init__(
        self,
        folder: Path,
        show: Callable[[Diagnosis], None],
        *,
        warmup: int | None = None,
        then: str = "the job runs on as if brim were not there",
    ) -> None:
        self.found: Diagnosis | None = None
        self.told = threading.Event()
        """Set when the verdict has been printed before the job's end."""
        self._folder, self._show, self._warmup, self._then = folder, show, warmup, then
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="brim-early", daemon=True)

    def __enter__(self) -> Early:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(0.5):
            if is_measured(self._folder):
                if not self._ended.wait(GRACE_S) and not is_ending(self._folder):
                    self._tell()
                return  # a job that ends by itself: its exit code belongs into the verdict

    def _tell(self) -> None:
        try:
            found = judge(self._folder, warmup=self._warmup)
            if self._ended.is_set() or is_ending(self._folder):
                return  # it has ended meanwhile
            self._show(found)
        except BrimError as error:
            print(f"brim: {error}", file=sys.stderr)
            return
        self.found = found
        self.told.set()
        print(f"brim: measured; {self._then}", file=sys.stderr)


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
        known = context(found, peak_flops=_peak(found[0]))
        known = dataclasses.replace(known, attainable_flops=_attainable(run, found[0]))
        traced = diagnose_traces(traces, context=known)
    except InputError as error:
        run.notes.append(f"the profiler window could not be used: {error}")
        return None
    return on_device(run, found, traced)


def _attainable(run: Run, rank: Rank) -> float | None:
    """FLOP/s of the best bf16 product on the run's machine when it was measured, else None."""
    device = rank.evidence.process.device
    measured = run.info.host.get("matmul_flops") or {}
    figure = measured.get(str(device["name"]), {}).get("bf16") if device else None
    return float(figure) if figure else None


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
