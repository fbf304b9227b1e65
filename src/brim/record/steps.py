"""``steps.*.jsonl``: one line a step of one training process; and the stacks it was seen in.

A line holds the *sums since the line before*, so lines can be merged: a process with several
optimizers writes one line for each step of each, and :func:`regular` chooses the clock.
All times are seconds; ``t`` is CLOCK_MONOTONIC and comparable between processes of one host.
"""

from __future__ import annotations

import contextlib
import itertools
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from brim.record.lines import decoded, read_lines

EVEN = 0.1
"""Clocks whose relative spread differs by less than this are equally even."""
RARE = 0.1
"""An optimizer that steps less often than this share of the busiest one is no clock."""


class Step(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one training process did since its last line."""

    n: int = 0
    t: float = 0.0
    """End of the step."""
    wall: float = 0.0
    clock: str = ""
    """What ended it: ``opt<k>``, ``loader``, ``backward``, ``time`` or ``exit``."""
    cpu: float = 0.0
    """CPU of the training thread."""
    run_delay: float | None = None
    """The training thread was runnable, without a core."""
    profiled: int = 0
    probe: int = 0
    """Debug modes were switched off for this step, to measure them; 2: torch's profiler, too."""
    debug: list[str] = []
    """Modes that slow every step, as they were when it began: those that brim never switches off
    in every line, others now and then."""
    own: float = 0.0
    """brim's own counting."""
    arm: int | None = None
    """Of a job that alternates between two settings: which one was in effect."""

    # input
    input_wait: float = 0.0
    """In the loader: next, iter, and all below."""
    input_cpu: float = 0.0
    input_main: float = 0.0
    """Of it, loading in the training process itself (no workers)."""
    input_iter: float = 0.0
    """Of it, making or resetting the iterator (an epoch's start)."""
    input_first: float = 0.0
    """Of it, waiting for an iterator's first batch."""
    input_shutdown: float = 0.0
    """Ending the workers of an epoch."""
    rebuild: float = 0.0
    """Of it, unpickling batches."""
    rebuild_other: float = 0.0
    rebuild_bytes: int = 0
    batches: int = 0
    ready: int = 0
    """Sum over batches: how many lay ready when the loop asked."""
    epochs: int = 0
    worker_starts: int = 0
    getitem: float = 0.0
    collate: float = 0.0

    # training
    backward: float = 0.0
    backward_n: int = 0
    backward_cpu: float = 0.0
    """Of it, on a core; only where DDP may wait for other ranks in it."""
    optimizer: float = 0.0
    host_optimizer: float = 0.0
    """Of it, updating tensors in host memory though the job has a device."""
    evaluation: float = 0.0
    evaluation_n: int = 0
    evaluation_input: float = 0.0
    """Of it, waiting for the evaluation's loader; not in ``input_wait``."""
    save: float = 0.0
    save_n: int = 0
    compile: float = 0.0
    compile_n: int = 0
    comm: float = 0.0
    comm_n: int = 0
    synced_backwards: int = 0
    ddp: list[dict[str, Any]] = []
    """Said once, in an early step: DDP modules with their buckets, parameters and bytes."""
    gc: float = 0.0
    gc_n: int = 0
    gc_generation_2: int = 0
    collect: float = 0.0
    """Garbage collections that the program asked for."""
    collect_n: int = 0
    flush: float = 0.0
    """``torch.cuda.empty_cache``."""
    flush_n: int = 0
    reads_n: int = 0
    reads_s: float = 0.0

    # content
    tokens: int = 0
    """Padding included."""
    pad_tokens: int = 0
    counted_batches: int = 0
    longest: int = 0
    documents: int = 0
    """Training samples, where they are known: a batch of the hooks has rows, not samples."""
    images: int = 0
    patches: int = 0
    loss: float | None = None

    reads: dict[str, tuple[int, float]] = {}
    """``what|file:line`` → (times, seconds)."""
    samples: dict[str, tuple[int, float, float, float]] = {}
    """Stack number → (count, wall, CPU, seconds another thread held the interpreter lock)."""


class Header(msgspec.Struct, kw_only=True):
    """The first line of a process's file."""

    pid: int
    version: int = 1
    ppid: int = 0
    rank: int = 0
    local_rank: int = 0
    world: int = 1
    t: float = 0.0
    python: str = ""
    versions: dict[str, str] = {}
    device: dict[str, Any] | None = None
    cores: int | None = None
    machine_cores: int | None = None
    env: dict[str, str] = {}
    threads: int | None = None


class Footer(msgspec.Struct, kw_only=True):
    """The last line, if the process lived to write it."""

    why: str = ""
    failures: dict[str, str] = {}
    versions: dict[str, str] = {}
    device: dict[str, Any] | None = None
    memory: dict[str, int] | None = None
    gc_enabled: bool = True
    ddp: list[dict[str, Any]] = []
    debug: list[str] = []
    compile: dict[str, Any] = {}


class Frame(msgspec.Struct, frozen=True, array_like=True):
    file: str
    function: str
    line: int = 0
    """0 where only the function is known."""
    text: str = ""


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    phase: str = ""
    """What brim's hooks knew at that moment: ``input``, ``backward``, ``optimizer``, …"""
    frames: tuple[Frame, ...] = ()
    """Leaf first."""
    pid: int = 0


class Process(msgspec.Struct, kw_only=True):
    """One training process as recorded."""

    header: Header
    steps: list[Step]
    stacks: dict[str, Stack] = {}
    footer: Footer | None = None

    @property
    def ddp(self) -> list[dict[str, Any]]:
        """The job's DDP modules, as far as it lived to say."""
        if self.footer is not None and self.footer.ddp:
            return self.footer.ddp
        return next((s.ddp for s in reversed(self.steps) if s.ddp), [])

    @property
    def versions(self) -> dict[str, str]:
        return (self.footer.versions if self.footer else None) or self.header.versions

    @property
    def device(self) -> dict[str, Any] | None:
        return (self.footer.device if self.footer else None) or self.header.device


_ADDED = tuple(
    f.name
    for f in msgspec.structs.fields(Step)
    if f.type in (int, float) and f.name not in ("n", "t", "profiled", "probe", "longest")
)


def read_process(path: Path) -> Process | None:
    """A process's file, as far as it is whole; None when not even its header is."""
    header: Header | None = None
    footer: Footer | None = None
    steps: list[Step] = []
    for kind, line in read_lines(path):
        with contextlib.suppress(msgspec.ValidationError):  # not a line of this version
            if kind == "header":
                header = msgspec.json.decode(line, type=Header)
            elif kind == "footer":
                footer = msgspec.json.decode(line, type=Footer)
            else:
                steps.append(msgspec.json.decode(line, type=Step))
    if header is None:
        return None
    stacks = path.with_name(path.name.replace("steps.", "stacks.", 1))
    return Process(header=header, steps=steps, footer=footer, stacks=read_stacks(stacks))


def read_stacks(path: Path) -> dict[str, Stack]:
    if not path.exists():
        return {}
    found = decoded(path, Stack)
    return {f"{s.pid}:{s.id}" if s.pid else s.id: s for s in found}


def merge(steps: Sequence[Step]) -> Step:
    """Several consecutive lines as one, ending when the last one ends."""
    if len(steps) == 1:
        return steps[0]
    total = msgspec.structs.replace(steps[-1])
    for name in _ADDED:
        setattr(total, name, sum(getattr(s, name) for s in steps))
    delays = [s.run_delay for s in steps if s.run_delay is not None]
    total.run_delay = sum(delays) if delays else None
    total.profiled = max(s.profiled for s in steps)
    total.probe = max(s.probe for s in steps)
    total.longest = max(s.longest for s in steps)
    total.debug = sorted({mode for s in steps for mode in s.debug})
    total.reads = _sum_tables(s.reads for s in steps)
    total.samples = _sum_tables(s.samples for s in steps)
    return total


def _sum_tables(tables: Iterable[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {}
    for table in tables:
        for key, values in table.items():
            old = total.get(key)
            total[key] = values if old is None else tuple(map(sum, zip(old, values, strict=True)))
    return total


def regular(steps: Sequence[Step]) -> tuple[str, list[Step]]:
    """The clock of the training loop and its steps.

    An optimizer's steps are preferred; of several optimizers the one that ticks most evenly, and of
    equals the one that ticks less often (a critic that steps five times for one step of the
    generator is no clock), unless that is rare.  Without an optimizer the loader's rhythm serves,
    then backward's, then the whole process is one step.  What follows the last tick belongs to no
    step.
    """
    ticks: dict[str, list[float]] = {}
    for step in steps:
        ticks.setdefault(step.clock, []).append(step.t)
    for kind in ("opt", "loader", "backward"):
        clocks = {c: t for c, t in ticks.items() if c.startswith(kind) and len(t) >= 3}
        if clocks:
            most = max(map(len, clocks.values()))
            often = {c: t for c, t in clocks.items() if len(t) >= RARE * most}
            clock = min(often, key=lambda c: (_unevenness(often[c]) // EVEN, len(often[c]), c))
            return clock, _merged_at(steps, clock)
    return "exit", [merge(steps)] if steps else []


def _unevenness(times: Sequence[float]) -> float:
    """Relative spread of the gaps between ticks; medians, so that one long gap does not count."""
    gaps = [b - a for a, b in itertools.pairwise(times)]
    middle = statistics.median(gaps)
    return statistics.median(abs(g - middle) for g in gaps) / middle if middle > 0 else 0.0


def _merged_at(steps: Sequence[Step], clock: str) -> list[Step]:
    merged, part = [], []
    for step in steps:
        part.append(step)
        if step.clock == clock:
            merged.append(merge(part))
            part = []
    return merged
