"""Which implementation a device gets, and why; every choice can be overridden.

=========  ==========  ============  =======  =========  =====
capability dtype       attention     compile  TF32       FP8
=========  ==========  ============  =======  =========  =====
no GPU     float32     math          no       no         no
6.x        float32     efficient     no       no         no
7.0, 7.5   float16     efficient     yes      no         no
8.0, 8.6   bfloat16    varlen        yes      yes        no
8.9        bfloat16    varlen        yes      yes        yes
≥ 9.0      bfloat16    fa4 [1]_      yes      yes        yes
=========  ==========  ============  =======  =========  =====

.. [1] ``varlen`` where flash-attn-4 is not installed.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
import torch._functorch.config

from brim.errors import ConfigError
from brim.model.attention import BACKENDS, Attention
from brim.model.loss import RowLoss, fused_row_loss, torch_row_loss
from brim.model.qwen3vl import Kernels, Qwen3VL

Capability = tuple[int, int]
T = TypeVar("T")
DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class Choice(Generic[T]):
    """A value picked on the user's behalf, and why."""

    value: T
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Choices:
    """Names of what runs; :func:`kernels` turns them into functions."""

    dtype: Choice[str]
    attention: Choice[str]
    compile: Choice[bool]
    tf32: Choice[bool]
    fp8: Choice[bool]
    """Whether the device has FP8 tensor cores; it is used only when asked for."""
    loss_scaling: Choice[bool]

    def reasons(self) -> dict[str, str]:
        """``{"attention": "fa4: …"}`` for the log of a run."""
        return {name: f"{c.value}: {c.why}" for name, c in self._all().items()}

    def _all(self) -> dict[str, Choice[object]]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def installed() -> frozenset[str]:
    """The optional packages that choices depend on, of those that are importable."""
    return frozenset(
        name
        for name, module in (("flash-attn-4", "flash_attn.cute"), ("triton", "triton"))
        if _importable(module)
    )


def _importable(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ImportError:  # its parent package is absent or broken
        return False


def choose(
    capability: Capability | None,
    packages: frozenset[str] = frozenset(),
    *,
    dtype: str | None = None,
    attention: str | None = None,
    compile: bool | None = None,
) -> Choices:
    """What a device of ``capability`` (None: no CUDA device) gets; the keywords override.

    Raises :class:`ConfigError` for an override that the device cannot run.
    """
    dtypes = _asked("dtype", dtype, DTYPES) or _dtype(capability)
    return Choices(
        dtype=dtypes,
        attention=_attention(capability, packages, dtypes.value, attention),
        compile=_compile(capability, packages, compile),
        tf32=_tf32(capability),
        fp8=_fp8(capability),
        loss_scaling=_loss_scaling(dtypes.value),
    )


def _asked(field: str, value: str | None, known: Collection[str]) -> Choice[str] | None:
    if value is None:
        return None
    if value not in known:
        raise ConfigError(f"{field} is {value!r}", hint=f"one of {', '.join(known)}")
    return Choice(value, "as configured")


def _name(capability: Capability) -> str:
    return f"sm_{capability[0]}{capability[1]}"


def _dtype(capability: Capability | None) -> Choice[str]:
    if capability is None:
        return Choice("float32", "a CPU gains nothing from half precision here")
    if capability >= (8, 0):
        return Choice("bfloat16", f"{_name(capability)} has bf16 tensor cores")
    if capability >= (7, 0):
        # torch.cuda.is_bf16_supported() is True on a T4, by emulation: ask the architecture
        return Choice("float16", f"{_name(capability)} has fp16 tensor cores and no bf16 units")
    return Choice("float32", f"{_name(capability)} has no tensor cores; fp16 would only lose range")


def _attention(
    capability: Capability | None, packages: frozenset[str], dtype: str, asked: str | None
) -> Choice[str]:
    possible = _possible_attention(capability, packages, dtype)
    chosen = _asked("attention", asked, BACKENDS)
    if chosen is None:
        return next(Choice(name, reason) for name, reason in possible.items() if reason)
    if not possible.get(chosen.value):
        usable = ", ".join(name for name, reason in possible.items() if reason)
        raise ConfigError(
            f"attention {asked!r} cannot run here ({dtype} on "
            f"{_name(capability) if capability else 'a CPU'})",
            hint=f"usable here: {usable}",
        )
    return chosen


def _possible_attention(
    capability: Capability | None, packages: frozenset[str], dtype: str
) -> dict[str, str]:
    """Implementation → why it is the best here, best first; empty when it cannot run."""
    half = dtype != "float32"
    cc = capability or (0, 0)
    name = _name(cc)
    missing = "; flash-attn-4 is not installed" if cc >= (9, 0) else ""
    return {
        "fa4": f"FlashAttention 4 has kernels for {name}"
        if cc >= (9, 0) and half and "flash-attn-4" in packages
        else "",
        "varlen": f"torch's flash kernel runs from sm_80{missing}" if cc >= (8, 0) and half else "",
        "efficient": f"the flash kernel does not take {dtype} on {name}" if capability else "",
        "math": "no CUDA device",
    }


def _compile(
    capability: Capability | None, packages: frozenset[str], asked: bool | None
) -> Choice[bool]:
    if asked is not None:
        return Choice(asked, "as configured")
    if capability is None:
        return Choice(False, "on a CPU the C++ compilation costs more than it gives")
    if capability < (7, 0):
        return Choice(False, f"Triton does not support {_name(capability)}")
    if "triton" not in packages:
        return Choice(False, "Triton is not installed")
    return Choice(True, "fuses norms, rotary embedding, activations and residuals of a block")


def _tf32(capability: Capability | None) -> Choice[bool]:
    if capability is not None and capability >= (8, 0):
        return Choice(True, "float32 products keep 10 bits of mantissa and run on tensor cores")
    return Choice(False, "TF32 starts with sm_80")


def _fp8(capability: Capability | None) -> Choice[bool]:
    if capability is not None and capability >= (8, 9):
        return Choice(True, f"{_name(capability)} has FP8 tensor cores")
    return Choice(False, "FP8 tensor cores start with sm_89")


def _loss_scaling(dtype: str) -> Choice[bool]:
    if dtype == "float16":
        return Choice(True, "gradients below 6e-8 would vanish in float16")
    return Choice(False, f"{dtype} has the range of float32")


def kernels(choices: Choices) -> Kernels:
    """The functions that ``choices`` name."""
    attention: Attention = BACKENDS[choices.attention.value]
    row_loss: RowLoss = fused_row_loss if choices.compile.value else torch_row_loss
    return Kernels(text_attention=attention, vision_attention=attention, row_loss=row_loss)


ACTIVATION_BUDGET = 0.9
"""Share of a block's activations that the compiler keeps for the backward pass.  It then forgets
what costs least to make again: outputs of norms and activation functions, 31 % (text) and 37 %
(tower) of the bytes at 8B's widths.  At 0.7 it would run the attention twice."""


def compile_blocks(
    model: Qwen3VL,
    *,
    static_patches: bool = False,
    activation_budget: float = ACTIVATION_BUDGET,
    backend: str | Callable[..., Any] = "inductor",
) -> None:
    """Compile every block of both towers in place, each kind once: blocks share their code.

    The row's length never changes.  Patch counts are symbols of the compiled code, so no count
    compiles again; with ``static_patches`` each bucket of patches has code of its own instead.
    ``activation_budget`` 1 keeps every activation.
    """
    # torch reads it when a block is first called, so it cannot be a context here
    torch._functorch.config.activation_memory_budget = activation_budget
    model.visual.static_patches = static_patches
    dynamic = False if static_patches else None
    for block in (*model.visual.blocks, model.visual.merger, *model.visual.deepstack):
        block.compile(fullgraph=True, dynamic=dynamic, backend=backend)
    for block in model.blocks:
        block.compile(fullgraph=True, backend=backend)
