"""Which attention runs: the implementation of transformers models, and SDPA's back end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, safely
from _brim_hooks.cure_model import Watcher, pretrained
from _brim_hooks.cure_precision import Switch

_BACKENDS = {"math": 0, "flash": 1, "efficient": 2, "cudnn": 3}  # torch.nn.attention.SDPBackend


class Implementation(Cure):
    ids = ("attention.implementation",)
    never = "no module was called with gradients"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return Watcher.patches(self.called)

    @safely
    def called(self, model: Any) -> None:
        found = next(pretrained(model), None)
        if found is None or not hasattr(found, "set_attn_implementation"):
            return self.unavailable("the model is none of transformers'")
        was = _implementations(found)
        if was == {self.value}:
            return self.unavailable("the job has it so already")
        if self.value.startswith("flash") and not _half(found):
            return self.unavailable("flash attention needs bfloat16 or float16")
        wrong = _wrong_heads(found) if self.value == "flash_attention_4" else None
        if wrong is not None:
            return self.unavailable(
                "flash-attn-4 has wrong gradients for heads of %d (Dao-AILab/flash-attention#2896)"
                % wrong
            )
        try:
            found.set_attn_implementation(self.value)
        except (ImportError, ValueError) as error:  # a package or a device that is not there
            return self.unavailable(str(error))
        if _implementations(found) == was:
            return self.unavailable("the model cannot change its attention")
        return self.applied(", ".join(sorted(was)))


def _implementations(model: Any) -> set[str]:
    """Of the model and the models inside it."""
    configs = [m.config for m in pretrained(model)]
    return {str(getattr(c, "_attn_implementation", None)) for c in configs}


def _half(model: Any) -> bool:
    torch = sys.modules["torch"]
    device = next(model.parameters()).device.type
    halves = (torch.bfloat16, torch.float16)
    return torch.is_autocast_enabled(device) or next(model.parameters()).dtype in halves


def _wrong_heads(model: Any) -> "int | None":
    """A head size whose queries get a wrong gradient without a word, in any of the models inside.

    On Hopper, FlashAttention 4 (up to 4.0.0b36 at least) rounds it up to a multiple of 16 for its
    products and to one of 32 for that gradient; they differ for the 72 of large vision towers.  A
    loss would tell it too late: the first steps are nearly the same.
    """
    cuda = sys.modules["torch"].cuda
    if cuda.is_initialized() and cuda.get_device_capability()[0] != 9:
        return None
    for config in (m.config for m in pretrained(model)):
        heads = getattr(config, "num_attention_heads", 0) or getattr(config, "num_heads", 0)
        size = getattr(config, "head_dim", 0)
        if not size and heads:
            size = getattr(config, "hidden_size", 0) // heads
        if size and -(-size // 16) * 16 != -(-size // 32) * 32:
            return int(size)
    return None


class Sdpa(Switch):
    """The back end that SDPA tries first; where it cannot do a call, the others follow."""

    ids = ("attention.sdpa",)
    never = "torch was not imported"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.before: list[int] = []  # the job's own order

    def _order(self) -> list[int]:
        return list(sys.modules["torch"]._C._get_sdp_priority_order())

    def get(self) -> Any:
        return _name(self._order()[0])

    def set(self, value: Any) -> None:
        order = self._order()
        if self.before and _name(self.before[0]) == value:
            order = self.before
        else:
            self.before = self.before or order
            number = _BACKENDS[value]
            order = [number, *(n for n in order if n != number)]
        sys.modules["torch"]._C._set_sdp_priority_order(order)

    def patch(self, module: Any) -> None:
        if not hasattr(module._C, "_set_sdp_priority_order"):
            self.unavailable("torch before 2.6 has no order of SDPA's back ends")
            return
        super().patch(module)

    def why_not(self) -> str:
        if not sys.modules["torch"].cuda.is_initialized():
            return "the job does not use a CUDA device"
        return ""


def _name(number: int) -> str:
    return next((name for name, n in _BACKENDS.items() if n == number), str(number))


CURES = (Implementation, Sdpa)
