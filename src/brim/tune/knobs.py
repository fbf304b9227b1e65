"""What can be changed about a job from outside, each with its type, its range and its price.

A :class:`Knob` is a place where a job can be changed without touching its files; a *setting* is a
mapping from knob ids to values.  A knob that a setting leaves out stays as the job has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal

from brim.errors import UsageError

Value = bool | int | str
Settings = Mapping[str, Value]

Numbers = Literal["same", "draws", "lossy"]
"""What a knob does to the numbers that the training computes.

``same``   equal up to rounding
``draws``  equal up to rounding, but random numbers (augmentation) may be drawn in another order
``lossy``  a narrower type, or another result
"""
How = Literal["hook", "environment", "argument"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Knob:
    """One thing that can be changed."""

    id: str
    summary: str
    """What is changed, with ``{}`` for the value."""
    kind: Literal["flag", "count", "choice"]
    low: int = 0
    """Of a count."""
    high: int = 1 << 40
    choices: tuple[str, ...] = ()
    numbers: Numbers = "same"
    by: tuple[How, ...] = ("hook",)
    """Ways in which it can be applied, the first is the rule."""
    live: bool = False
    """May be switched from window to window inside a running process."""
    memory: str = ""
    """What it costs in memory; empty when nothing."""
    frees: str = ""
    """What it no longer keeps in the device's memory; empty when nothing."""
    effort: float = 1.0
    """Time of a run with it, by that of another run."""
    special: tuple[tuple[Value, str], ...] = ()
    """Values that have words of their own."""

    @property
    def lossless(self) -> bool:
        return self.numbers != "lossy"

    @property
    def exclusive(self) -> bool:
        """A choice that is made once; what can be switched at any time is cheap to try again."""
        return self.kind == "choice" and not self.live

    def admits(self, value: Value) -> bool:
        if self.kind == "flag":
            return isinstance(value, bool)
        if self.kind == "count":
            # bool is an int to Python, not to a user
            is_count = isinstance(value, int) and not isinstance(value, bool)
            return is_count and self.low <= value <= self.high  # type: ignore[operator]
        return isinstance(value, str) and (value in self.choices if self.choices else bool(value))

    def words(self, value: Value) -> str:
        """``8 loader workers``; of a flag set to false the opposite."""
        for known, said in self.special:
            if known == value and type(known) is type(value):
                return said
        text = self.summary.format(value)
        return f"no {text}" if value is False else text


def _flag(id: str, summary: str, **rest: Any) -> Knob:
    return Knob(id=id, summary=summary, kind="flag", **rest)


def _count(id: str, summary: str, low: int, high: int, **rest: Any) -> Knob:
    return Knob(id=id, summary=summary, kind="count", low=low, high=high, **rest)


def _choice(id: str, summary: str, choices: tuple[str, ...], **rest: Any) -> Knob:
    return Knob(id=id, summary=summary, kind="choice", choices=choices, **rest)


_BATCHES = "host memory of workers × prefetch × batch"

_ALL: Final = (
    # ------------------------------------------------------------------------------------ input
    _count("loader.num_workers", "{} loader workers", 0, 256, numbers="draws",
           by=("hook", "argument"), memory=_BATCHES, special=((1, "1 loader worker"),)),
    _count("loader.prefetch_factor", "{} batches ahead per worker", 1, 64,
           by=("hook", "argument"), memory=_BATCHES),
    _flag("loader.pin_memory", "pinned batches", by=("hook", "argument"),
          memory="pinned host memory of prefetch × batch"),
    _flag("loader.persistent_workers", "workers kept between epochs", numbers="draws",
          by=("hook", "argument"), memory="workers keep their memory between epochs"),
    _count("worker.threads", "{} threads in each loader worker", 1, 64,
           by=("hook", "environment"), special=((1, "one thread in each loader worker"),)),
    _flag("cpu.affinity", "each rank on cores of its own, near its device"),
    _count("cpu.threads", "{} threads for operations of the training process", 1, 256,
           by=("environment", "hook"), live=True),
    # --------------------------------------------------------------------------------- transfer
    _flag("transfer.non_blocking", "copies to the device that do not block", live=True),
    # ------------------------------------------------------------------------------------- host
    _flag("optimizer.fused", "fused optimizer", by=("hook", "argument")),
    _flag("optimizer.set_to_none", "gradients set to None instead of zeroed", live=True),
    _flag("debug", "debug modes", by=("hook", "environment"),
          special=((False, "debug modes off"),)),
    _flag("gc.freeze", "garbage collector that leaves long-lived objects alone", live=True),
    _count("memory.flush", "empty_cache() and gc.collect() only every {} steps",
           0, 1_000_000, by=("hook", "argument"), live=True,
           special=((0, "no empty_cache() and gc.collect() in the loop"),)),
    _flag("allocator.expandable_segments", "allocator segments that grow", by=("environment",)),
    # ---------------------------------------------------------------------------------- compute
    _choice("precision.tf32", "float32 matrix products in TF32 ({})", ("high", "medium"),
            numbers="lossy", by=("hook", "argument"), live=True),
    _choice("precision.autocast", "autocast to {}", ("bfloat16", "float16"),
            numbers="lossy", by=("hook", "argument")),
    _choice("attention.sdpa", "SDPA back end {}",
            ("flash", "efficient", "cudnn", "math"), live=True),
    _choice("attention.implementation", "attention implementation {}",
            ("sdpa", "flash_attention_2", "flash_attention_3", "flash_attention_4",
             "flex_attention"),
            by=("hook", "argument")),
    _flag("patch_embedding.matmul", "patch embedding as a matrix product"),
    _flag("liger", "Liger kernels", by=("hook", "argument"),
          frees="the logits, and what norms and activation functions keep"),
    _flag("compile.blocks", "compiled blocks", memory="host memory of the compiler", effort=3.0),
    _flag("cudnn.benchmark", "kernel search of cuDNN", by=("hook", "argument"), live=True),
    _choice("recompute", "activations recomputed in blocks: {}", ("none", "half", "all"),
            by=("hook", "argument"), memory="activations that are kept until backward",
            special=(("none", "no activations recomputed"),)),
    _count("batch.micro", "micro-batch of {}, the same batch per optimizer step", 1, 1 << 16,
           by=("argument", "hook"), memory="activations of the micro-batch"),
    # ------------------------------------------------------------------------------------- comm
    _flag("ddp.no_sync", "gradients reduced once per optimizer step"),
    _count("ddp.bucket_cap_mb", "gradient buckets of {} MB", 1, 4096, by=("hook", "argument")),
    _choice("nccl.algo", "NCCL_ALGO={}", ("Ring", "Tree", "NVLS"), by=("environment",)),
    _choice("nccl.proto", "NCCL_PROTO={}", ("Simple", "LL", "LL128"), by=("environment",)),
    _count("nccl.nchannels", "at least {} NCCL channels", 1, 64, by=("environment",),
           memory="device memory of the channels"),
)  # fmt: skip

KNOBS: Final[Mapping[str, Knob]] = MappingProxyType({knob.id: knob for knob in _ALL})


_CONFIGURED: Final[Mapping[str, Numbers]] = MappingProxyType(
    {
        "model.dtype": "lossy",
        "model.fp8": "lossy",
        "model.fp8_scope": "lossy",
        "optimizer.states": "lossy",
        "data.dct_scaling": "lossy",
        # the same samples in other rows, and so in other steps
        "data.tokens_per_row": "draws",
        "data.rows_per_step": "draws",
        "train.gradient_accumulation_steps": "draws",
    }
)
"""Fields of a configuration of ``brim train``; those that are not named keep the numbers."""


def numbers_of(settings: Settings) -> Numbers:
    """The worst of what the knobs do to the numbers."""
    kinds = {KNOBS[id].numbers if id in KNOBS else _CONFIGURED.get(id, "same") for id in settings}
    if "lossy" in kinds:
        return "lossy"
    return "draws" if "draws" in kinds else "same"


def check(settings: Settings) -> Settings:
    """The settings; raises :class:`UsageError` for a knob or a value that there is not."""
    for id, value in settings.items():
        knob = KNOBS.get(id)
        if knob is None:
            raise UsageError(f"{id}: no such knob", hint=f"there are {', '.join(KNOBS)}")
        if not knob.admits(value):
            raise UsageError(f"{id} = {value!r}: {_range(knob)}")
    return settings


def words(settings: Settings) -> str:
    """``8 loader workers, pinned batches``; knobs of a trainer's configuration as ``a.b = c``."""
    return ", ".join(
        KNOBS[id].words(value) if id in KNOBS else f"{id} = {value}"
        for id, value in settings.items()
    )


def _range(knob: Knob) -> str:
    if knob.kind == "flag":
        return "true or false"
    if knob.kind == "count":
        return f"a number from {knob.low} to {knob.high}"
    return f"one of {', '.join(knob.choices)}"
