"""Copies of the loader's pinned batches that do not block the training thread.

Only tensors that the loader itself has pinned: their memory is kept until the copy has ended.  A
staging buffer of the job's own may be written again while a copy from it is under way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure


class NonBlocking(Cure):
    ids = ("transfer.non_blocking",)
    never = "no pinned batch of a loader was copied to a device (see loader.pin_memory)"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [
            ("torch.utils.data._utils.pin_memory", self.patch_pinning),
            ("torch._tensor", self.patch_tensor),
        ]

    def patch_pinning(self, module: Any) -> None:
        original = module.pin_memory

        @functools.wraps(original)
        def pin_memory(data: Any, device: Any = None) -> Any:
            pinned = original(data, device)
            mark(pinned)
            return pinned

        module.pin_memory = pin_memory  # the function finds itself by this name for what is inside

    def patch_tensor(self, module: Any) -> None:
        tensor = module.Tensor
        for name in ("to", "cuda"):
            setattr(tensor, name, self.wrap(getattr(tensor, name)))

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def copy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if self.value is not None and is_marked(tensor) and not _positional(args):
                if kwargs.get("non_blocking", False) is not self.value:
                    self.applied(not self.value)
                kwargs["non_blocking"] = self.value
            return original(tensor, *args, **kwargs)

        return copy


def mark(pinned: Any) -> None:
    if hasattr(pinned, "is_pinned") and hasattr(pinned, "untyped_storage"):
        try:
            pinned._brim_pinned = True
        except AttributeError:
            pass  # a subclass with slots: its copies stay as they are


def is_marked(tensor: Any) -> bool:
    """Pinned by the loader, or a view of what is."""
    if getattr(tensor, "_brim_pinned", False):
        return True
    base = getattr(tensor, "_base", None)
    return base is not None and getattr(base, "_brim_pinned", False)


def _positional(args: tuple[Any, ...]) -> bool:
    """``to(device, dtype, True)``: the caller has said it in its own way."""
    return any(isinstance(a, bool) for a in args)


CURES = (NonBlocking,)
