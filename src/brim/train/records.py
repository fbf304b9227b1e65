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
from brim.train.parallel.ranks import Ranks
from brim.train.trackers import Trackers

PEAK_NAMES = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}


class Records:
    """``steps.rank<R>.jsonl`` in the project's format; from rank 0 ``metrics.jsonl`` for plots.

    All ranks of a run write into one folder.  Each line is flushed as it is written; a full disk
    costs records, never the run.
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
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks or Ranks()
        made = (
            run_directory.create(root, command, _host(device), __version__) if self.first else root
        )
        self.folder = self.ranks.told(made)
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # another host has its own disk
        self._trackers = Trackers(report_to if self.first else (), self.folder, settings or {}, say)
        self.lost = 0
        self._began = time.monotonic()
        steps = self.folder / f"steps.rank{self.ranks.rank}.jsonl"
        self._steps = steps.open("ab", buffering=0)
        self._metrics = (
            (self.folder / "metrics.jsonl").open("ab", buffering=0) if self.first else None
        )
        header = _header(device, self.ranks)
        self._write(self._steps, {"kind": "header", **msgspec.to_builtins(header)})

    @property
    def first(self) -> bool:
        """Whether this rank writes what is one for the whole run."""
        return self.ranks.first

    def step(self, step: Step) -> None:
        self._write(self._steps, step)

    def metrics(self, values: Mapping[str, Any]) -> None:
        if self._metrics is None:
            return
        self._write(self._metrics, values)
        self._trackers.log(int(values.get("step", 0)), values)

    def close(self, exit_code: int, why: str) -> None:
        self._trackers.close()
        self._write(self._steps, {"kind": "footer", "why": why})
        self._steps.close()
        if self._metrics is None:
            return
        self._metrics.close()
        run_directory.finish(
            self.folder, exit_code=exit_code, wall_s=time.monotonic() - self._began
        )

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


def _header(device: torch.device, ranks: Ranks) -> Header:
    versions = {"torch": str(torch.__version__), "brim": __version__}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
    return Header(
        pid=os.getpid(),
        ppid=os.getppid(),
        rank=ranks.rank,
        local_rank=ranks.local_rank,
        world=ranks.world,
        t=time.monotonic(),
        python=sys.version.split()[0],
        versions=versions,
        device=about(device),
        cores=len(os.sched_getaffinity(0)),
        machine_cores=os.cpu_count(),
        threads=torch.get_num_threads(),
    )
