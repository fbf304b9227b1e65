"""From findings to settings worth a trial, by the gain that can be expected for a trial's time.

A remedy whose cure needs the user's code has no knob, and so no candidate; it stays in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from brim.record.findings import Finding
from brim.tune.knobs import KNOBS, Settings, Value, numbers_of

Key = tuple[tuple[str, Value], ...]

UNPROMPTED: Final = 1.01
"""Expected of what is tried though no finding asks for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What is known of the job and its machine."""

    cores: int = 1
    """Usable ones of a rank."""
    device: bool = False
    """It trains on a GPU."""
    ranks: int = 1
    batch: int | None = None
    """Samples of a forward pass; None where the command does not tell."""
    accumulation: int | None = None
    """Forward passes of an optimizer step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """Values of one knob to search among when the first one has helped, in order."""

    knob: str
    values: tuple[Value, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A change to try."""

    settings: dict[str, Value]
    cause: str = ""
    expected: float = UNPROMPTED
    """Speed-up, the geometric middle of the finding's range."""
    share: float = 0.0
    """Of the finding."""
    axis: Axis | None = None
    absent: str = ""
    """Why it cannot be applied, where that is known without a run."""

    @property
    def worth(self) -> float:
        """Log speed-up by the time of a trial."""
        efforts = (KNOBS[id].effort for id in self.settings if id in KNOBS)
        return math.log(self.expected) / max(efforts, default=1.0)

    @property
    def lossless(self) -> bool:
        return numbers_of(self.settings) != "lossy"


@dataclass(frozen=True, slots=True)
class _Try:
    """A rule's proposal: settings, and the part of the finding's gain that they can bring."""

    settings: dict[str, Value]
    part: float = 1.0
    axis: Axis | None = field(default=None)


_Rule = Callable[[Finding, Job], list[_Try]]


def _number(finding: Finding, name: str, default: int) -> int:
    value = finding.facts.get(name, default)
    return int(value) if isinstance(value, int | float) else default


def _workers(start: int, job: Job, *, most: int) -> _Try:
    """``start`` workers first, then doublings and halvings from there while the loop still waits.

    Without workers that persist, epochs would start them anew.
    """
    start = max(1, min(start, most))
    values = {start}
    values.update(n for k in range(1, 9) if (n := start * 2**k) <= most)
    values.update(n for k in range(1, 9) if (n := start // 2**k) >= 1)
    values.update(n for n in (job.cores - 1, job.cores) if 1 <= n <= most)
    axis = Axis(knob="loader.num_workers", values=tuple(sorted(values)))
    return _Try({"loader.num_workers": start, "loader.persistent_workers": True}, axis=axis)


def _more(start: int, job: Job, *, most: int) -> _Try:
    """Twice as many, for when the first number did not help."""
    again = _workers(2 * start, job, most=most)
    return _Try(again.settings, 0.6, again.axis)


def _too_few_workers(finding: Finding, job: Job) -> list[_Try]:
    if finding.facts.get("custom"):
        return []
    now = _number(finding, "now", 0)
    start = _number(finding, "workers", max(now + 1, job.cores - 1))
    most = max(2 * job.cores, start)
    return [_workers(start, job, most=most), _more(start, job, most=most), _ahead(0.3)]


def _main_process(finding: Finding, job: Job) -> list[_Try]:
    """As many workers as keep up: the loading time of a batch by that of the rest of its step."""
    busy = max(1.0 - finding.share, 0.02)
    needed = math.ceil(1.15 * finding.share / busy)
    if finding.facts.get("blocked"):
        return [_workers(max(4, needed), job, most=32)]
    # one core is the training thread's, where there is more than one
    fit = max(1, job.cores - 1)
    start, most = min(max(needed, 2), fit), 2 * job.cores
    return [_workers(start, job, most=most), _more(start, job, most=most)]


def _storage(finding: Finding, job: Job) -> list[_Try]:
    """More reads in flight hide latency; waiting workers need no core."""
    now = _number(finding, "workers", 0)
    if not now:
        return _main_process(finding, job)
    part = 1.0 if finding.facts.get("kind") == "latency" else 0.3
    workers = _workers(4 * now, job, most=max(32, 4 * job.cores))
    return [_Try(workers.settings, part, workers.axis), _ahead(0.3 * part)]


def _ahead(part: float) -> _Try:
    axis = Axis(knob="loader.prefetch_factor", values=(4, 8, 16))
    return _Try({"loader.prefetch_factor": 4}, part, axis)


def _decode(finding: Finding, job: Job) -> list[_Try]:
    """Cores are used up: another thread a worker only fights for them, and so may a worker."""
    return [
        _Try({"worker.threads": 1}, 0.4),
        _Try(_workers(job.cores, job, most=2 * job.cores).settings, 0.3),
        _Try({"cpu.threads": max(1, job.cores // 2)}, 0.2),
    ]


def _oversubscription(finding: Finding, job: Job) -> list[_Try]:
    fewer = _workers(max(1, job.cores - 1), job, most=2 * job.cores)
    return [_Try({"worker.threads": 1}), _Try(fewer.settings, 0.5, fewer.axis)]


def _cpu_limit(finding: Finding, job: Job) -> list[_Try]:
    return [
        _Try({"cpu.affinity": True}, 0.9),
        _Try({"worker.threads": 1}, 0.5),
        _Try({"cpu.threads": job.cores}, 0.4),
    ]


_FLASH: Final = ("flash_attention_4", "flash_attention_3", "flash_attention_2")
"""The fastest first; a package or a device that is not there is noticed."""


def _flash(best: float) -> list[_Try]:
    """``best``: the part of the gain that the first brings."""
    return [_Try(_implementation(name), best * 0.95**k) for k, name in enumerate(_FLASH)]


def _implementation(name: str) -> dict[str, Value]:
    return {"attention.implementation": name}


def _attention(finding: Finding, job: Job) -> list[_Try]:
    return [
        *_flash(1.0),
        _Try({"attention.implementation": "sdpa"}, 0.8),
        _Try({"attention.sdpa": "flash"}, 0.6),
        _Try({"attention.sdpa": "cudnn"}, 0.5),
    ]


def _launches(finding: Finding, job: Job) -> list[_Try]:
    """Fewer operations for the same work; attention over packed lengths needs no loop over images.

    The optimizer launches a few kernels a step, whatever the model's depth.
    """
    return [
        _Try({"compile.blocks": True}, 0.8),
        *_larger_batch(job),
        _Try({"liger": True}, 0.4),
        *_flash(0.4),
        _Try({"optimizer.fused": True}, 0.2),
        _Try({"optimizer.set_to_none": True}, 0.1),
    ]


def _larger_batch(job: Job) -> list[_Try]:
    """As many samples an optimizer step in fewer passes, where there are several."""
    if not job.batch or not job.accumulation:
        return []
    passes = [n for n in range(1, job.accumulation + 1) if job.accumulation % n == 0]
    values = [job.batch * n for n in passes]
    if len(values) < 2:
        return []
    return [_Try({"batch.micro": values[1]}, 0.7, Axis(knob="batch.micro", values=tuple(values)))]


def _unfused(finding: Finding, job: Job) -> list[_Try]:
    return [
        _Try({"compile.blocks": True}, 0.8),
        _Try({"liger": True}, 0.7),
        _Try({"optimizer.fused": True}, 0.2),
    ]


def _exposed(finding: Finding, job: Job) -> list[_Try]:
    buckets = Axis(knob="ddp.bucket_cap_mb", values=(10, 25, 50, 100, 200))
    return [
        _Try({"ddp.bucket_cap_mb": 50}, 0.5, buckets),
        _Try({"ddp.no_sync": True}, 0.5),
        _Try({"nccl.algo": "Ring"}, 0.2),
        _Try({"nccl.nchannels": 16}, 0.2),
    ]


def _too_many(finding: Finding, job: Job) -> list[_Try]:
    buckets = Axis(knob="ddp.bucket_cap_mb", values=(10, 25, 50, 100, 200))
    return [_Try({"ddp.no_sync": True}), _Try({"ddp.bucket_cap_mb": 25}, 0.9, buckets)]


def _always(*tries: _Try) -> _Rule:
    return lambda finding, job: list(tries)


_RULES: Final[dict[str, _Rule]] = {
    "input.workers": _too_few_workers,
    "input.main-process": _main_process,
    "input.storage": _storage,
    "input.decode": _decode,
    "input.handoff": _always(_Try({"loader.pin_memory": True}, 0.2), _ahead(0.2)),
    "input.oversubscription": _oversubscription,
    "input.cpu-limit": _cpu_limit,
    "input.worker-restart": _always(_Try({"loader.persistent_workers": True})),
    "input.startup": _always(_Try({"loader.persistent_workers": True}, 0.2)),
    "transfer.pageable": _always(
        _Try({"loader.pin_memory": True, "transfer.non_blocking": True})
    ),
    "host.launch": _launches,
    "host.gc": _always(_Try({"gc.freeze": True})),
    "host.debug-mode": _always(_Try({"debug": False})),
    "memory.cache-flush": _always(_Try({"memory.flush": 0})),
    "memory.pressure": _always(
        _Try({"allocator.expandable_segments": True}), _Try({"recompute": "half"}, 0.4)
    ),
    "compute.precision": _always(
        _Try({"precision.autocast": "bfloat16"}), _Try({"precision.tf32": "high"}, 0.7)
    ),
    "compute.attention": _attention,
    "compute.slow-kernel": _always(
        _Try({"patch_embedding.matmul": True}), _Try({"cudnn.benchmark": True}, 0.5)
    ),
    "compute.recompute": _always(
        _Try({"recompute": "none"}), _Try({"recompute": "half"}, 0.5)
    ),
    "compute.unfused": _unfused,
    "compute.shape-search": _always(_Try({"cudnn.benchmark": False})),
    "comm.exposed": _exposed,
    "comm.too-many": _too_many,
}  # fmt: skip

_UNPROMPTED: Final[tuple[dict[str, Value], ...]] = (
    {"precision.autocast": "bfloat16"},
    {"precision.tf32": "high"},
    {"recompute": "none"},
    {"liger": True},
    *(_implementation(name) for name in _FLASH),
    {"patch_embedding.matmul": True},
    {"optimizer.fused": True},
    {"attention.sdpa": "cudnn"},
    {"gc.freeze": True},
    {"compile.blocks": True},
)
"""On a device that computes nearly all the time, in the order of what they usually bring for the
time that a trial takes; one that has nothing to act on says so in its only run."""


def candidates(findings: Sequence[Finding], job: Job) -> list[Candidate]:
    """All that could be tried, the largest gain for a trial's time first; equal settings once.

    What several findings propose can cure them all: their gains multiply.
    """
    made: dict[Key, Candidate] = {}
    for finding in findings:
        for candidate in _first_of_each(_of(finding, job)):
            key = key_of(candidate.settings)
            made[key] = _together(made[key], candidate) if key in made else candidate
    found = sorted(made.values(), key=lambda c: -c.worth)
    if job.device:
        found += [Candidate(settings=dict(settings)) for settings in _UNPROMPTED]
    return list(_first_of_each(found))


def _together(a: Candidate, b: Candidate) -> Candidate:
    """Against both causes, under the name of the dearer one."""
    return replace(max(a, b, key=lambda c: c.expected), expected=a.expected * b.expected)


def _of(finding: Finding, job: Job) -> Iterable[Candidate]:
    rule = _RULES.get(finding.cause)
    if rule is None:
        return
    low, high = finding.gain
    # a whole gain may be infinite on paper: 20× is more than enough to come first
    gain = math.log(min(max(low, 1.0) * max(high, 1.0), 400.0)) / 2
    for proposal in sorted(rule(finding, job), key=lambda proposal: -proposal.part):
        yield Candidate(
            settings=proposal.settings,
            cause=finding.cause,
            expected=math.exp(gain * proposal.part),
            share=finding.share,
            axis=proposal.axis,
        )


def _first_of_each(found: Iterable[Candidate]) -> Iterable[Candidate]:
    seen: set[Key] = set()
    for candidate in found:
        key = key_of(candidate.settings)
        if key not in seen:
            seen.add(key)
            yield candidate


def key_of(settings: Settings) -> Key:
    """The same for equal settings."""
    return tuple(sorted(settings.items(), key=lambda item: item[0]))
