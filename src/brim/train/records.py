"""What a training run leaves in its run directory: the same records that brim observes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from brim import __version__
from brim.hardware.gpus import Gpu, identify
from brim.record import run as run_directory
from brim.record.steps import Header, Step
from brim.train.trackers import Trackers

PEAK_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Records:
    """``steps.rank0.jsonl`` in the project's format and ``metrics.jsonl`` for plots.

    Each line is flushed as it is written; a full disk costs records, never the run.
    """

    def __init__(
        self,
        root: Path,
        command: list[str],
        device: torch.device,
        *,
        report_to: Sequence[str] = (),
        settings: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = print,
    ) -> None:
        self.folder = run_directory.create(root, command, _host(device), __version__)
        self._trackers = Trackers(report_to, self.folder, settings or {}, say)
        self.lost = 0
        self._began = time.monotonic()
        self._steps = (self.folder / "steps.rank0.jsonl").open("ab", buffering=0)
        self._metrics = (self.folder / "metrics.jsonl").open("ab", buffering=0)
        self._write(self._steps, {"kind": "header", **msgspec.to_builtins(_header(device))})

    def step(self, step: Step) -> None:
        self._write(self._steps, step)

    def metrics(self, values: Mapping[str, Any]) -> None:
        self._write(self._metrics, values)
        self._trackers.log(int(values.get("step", 0)), values)

    def close(self, exit_code: int, why: str) -> None:
        self._trackers.close()
        self._write(self._steps, {"kind": "footer", "why": why})
        run_directory.finish(
            self.folder, exit_code=exit_code, wall_s=time.monotonic() - self._began
        )
        self._steps.close()
        self._metrics.close()

    def _write(self, file: Any, line: Any) -> None:
        try:
            file.write(msgspec.json.encode(line) + b"\n")
        except OSError:
            self.lost += 1


def gpu_of(device: torch.device) -> Gpu | None:
    """The row of brim's table for ``device``; None for a CPU or an unknown GPU."""
    if device.type != "cuda":
        return None
    seen = torch.cuda.get_device_properties(device)
    return identify(
        name=seen.name,
        capability=(seen.major, seen.minor),
        sm_count=seen.multi_processor_count,
        memory_bytes=seen.total_memory,
    )


def peak_flops(device: torch.device, dtype: str) -> float | None:
    """Dense peak of ``device`` in ``dtype``, FLOP/s; None where it is not known.

    FP8 runs are measured against the peak of their 16-bit type, like all others.
    """
    gpu = gpu_of(device)
    peak = gpu.dense_tflops.get(PEAK_NAMES[dtype]) if gpu else None
    return None if peak is None else peak * 1e12


def _host(device: torch.device) -> dict[str, Any]:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    return {"device": name, "torch": str(torch.__version__)}


def about(device: torch.device) -> dict[str, Any] | None:
    """What tells one CUDA device from another, as brim's hooks record it; None for a CPU."""
    if device.type != "cuda":
        return None
    seen = torch.cuda.get_device_properties(device)
    return {
        "name": seen.name,
        "capability": [seen.major, seen.minor],
        "sm_count": seen.multi_processor_count,
        "memory": seen.total_memory,
    }


def _header(device: torch.device) -> Header:
    versions = {"torch": str(torch.__version__), "brim": __version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return Header(
        pid=os.getpid(),
        ppid=os.getppid(),
        t=time.monotonic(),
        python=sys.version.split()[0],
        versions=versions,
        device=about(device),
        cores=len(os.sched_getaffinity(0)),
        machine_cores=os.cpu_count(),
        threads=torch.get_num_threads(),
    )
