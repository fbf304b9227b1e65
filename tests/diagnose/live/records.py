"""Synthetic records of training processes: what the hooks would have written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from brim.diagnose.live.evidence import Evidence, gather
from brim.diagnose.live.inputs import Machine
from brim.diagnose.live.loaders import Workers
from brim.diagnose.live.loaders import gather as gather_workers
from brim.diagnose.live.window import Chosen, choose
from brim.record.run import Run, RunInfo
from brim.record.steps import Footer, Frame, Header, Process, Stack, Step
from brim.record.workers import WorkerLine

TRAIN = "/home/me/train.py"
TORCH = "/venv/lib/python3.12/site-packages/torch"
SITE = "/venv/lib/python3.12/site-packages"


def stack(number: str, *frames: tuple[Any, ...] | Frame, phase: str = "", pid: int = 0) -> Stack:
    """Frames leaf first, each (file, function[, line[, text]])."""
    return Stack(
        id=number,
        phase=phase,
        frames=tuple(f if isinstance(f, Frame) else Frame(*f) for f in frames),
        pid=pid,
    )


MAIN = (TRAIN, "main", 40, "train()")
FORWARD = stack(
    "1", (f"{TORCH}/nn/functional.py", "linear"), (f"{TORCH}/nn/modules/module.py", "_call_impl"),
    (TRAIN, "train", 30, "loss = model(x)"), MAIN,
)  # fmt: skip
WAIT = stack("2", ("/usr/lib/python3.12/queue.py", "get"), MAIN, phase="input")
OWN = stack("3", (TRAIN, "shuffle_things", 50, "for i in range(n):"), MAIN)


def steps(number: int, wall: float = 0.1, *, begin: float = 0.0, **fields: Any) -> list[Step]:
    """Equal steps of one optimizer, one after the other."""
    return [
        Step(n=n, t=begin + (n + 1) * wall, wall=wall, clock="opt0", **fields)
        for n in range(number)
    ]


def process(
    lines: list[Step], *stacks: Stack, rank: int = 0, footer: Footer | None = None, **header: Any
) -> Process:
    """A process with a header, those lines, and a footer (None: it was killed)."""
    fields: dict[str, Any] = {"pid": 100 + rank, "cores": 8, "machine_cores": 8, "world": 1}
    return Process(
        header=Header(**(fields | {"rank": rank} | header)),
        steps=lines,
        stacks={s.id: s for s in (FORWARD, WAIT, OWN, *stacks)},
        footer=footer,
    )


def evidence(
    lines: list[Step], *stacks: Stack, footer: Footer | None = None, **header: Any
) -> Evidence:
    """The evidence of a process whose steps all count (no warm-up is taken off)."""
    found = process(lines, *stacks, footer=footer, **header)
    return gather(found, choose(found, warmup=0))


def seen(*samples: tuple[str, float]) -> dict[str, tuple[int, float, float, float]]:
    """Samples of a step by (stack, seconds), on the core all the time."""
    return {key: (1, wall, wall, 0.0) for key, wall in samples}


def machine(**fields: Any) -> Machine:
    return Machine(**({"machine": 8, "usable": 8.0} | fields))


LOADING = stack(
    "1", (f"{SITE}/PIL/Image.py", "Image.resize"), (TRAIN, "Photos.__getitem__", 12, "x.resize("),
    phase="getitem", pid=201,
)  # fmt: skip


def workers(
    chosen: Chosen, number: int = 2, *, stacks: tuple[Stack, ...] = (LOADING,), **of_a_second: Any
) -> Workers:
    """Each worker left a line a second, over the whole window; the fields are those of a line."""
    end = chosen.steps[-1].t
    base: dict[str, Any] = {
        "wall": 1.0, "getitem": 0.95, "thread_cpu": 0.95, "cpu": 0.95, "fetches": 5, "samples": 40,
        "threads": 1, "running": 1.0, "cores": 8, "stacks": {"1": (40, 0.9, 0.9, 0.0)},
    }  # fmt: skip
    lines = [
        WorkerLine(
            **({"pid": 201 + w, "worker": w, "workers": number, "t": t} | base | of_a_second)
        )
        for w in range(number)
        for t in range(max(1, round(end)))
    ]
    found = gather_workers(lines, chosen, {f"{s.pid}:{s.id}": s for s in stacks})
    assert found is not None
    return found


def run(*processes: Process, **fields: Any) -> Run:
    """A run directory in memory."""
    info = RunInfo(
        command=["python", "train.py"], host={"cores": 8, "memory": 1 << 35}, exit_code=0
    )
    return Run(folder=Path("runs/x"), info=info, processes=list(processes), **fields)
