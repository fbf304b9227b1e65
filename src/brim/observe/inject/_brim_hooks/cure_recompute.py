"""Activation checkpointing: off, for every second block, or for all.

``torch.utils.checkpoint.checkpoint`` is what transformers, Lightning and FSDP's wrappers call in
the end.  Without it a block runs as it is; its activations are kept and nothing runs twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, compiling, safely
from _brim_hooks.cure_model import Watcher, pretrained

_OWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug",
        "early_stop")  # fmt: skip
NONE, HALF = "none", "half"


class Recompute(Cure):
    ids = ("recompute",)
    never = "the job recomputes nothing"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.calls = 0

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        patches: list[tuple[str, Callable[[Any], None]]] = []
        if self.value != NONE:
            patches = Watcher.patches(self.called)
        return [*patches, ("torch.utils.checkpoint", self.patch)]

    def patch(self, module: Any) -> None:
        original = module.checkpoint

        @functools.wraps(original)
        def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            keeps = self.value == NONE if compiling() else self.recomputes() is False
            if not keeps:
                return original(function, *args, **kwargs)
            return function(*args, **{k: v for k, v in kwargs.items() if k not in _OWN})

        module.checkpoint = checkpoint

    @safely
    def recomputes(self) -> bool:
        self.calls += 1
        if self.value == NONE:
            self.applied("all")
            return False
        if self.value == HALF:
            self.applied("all")
            return self.calls % 2 == 1
        return True

    @safely
    def called(self, model: Any) -> None:
        """Some or all are wanted: a transformers model that has none gets them."""
        found = next(pretrained(model), None)
        has = any(getattr(m, "gradient_checkpointing", False) for m in model.modules())
        if has:
            if self.value != HALF:
                self.unavailable("the job has it so already")
            return
        if found is None or not getattr(found, "supports_gradient_checkpointing", False):
            self.unavailable("the model is none of transformers' that can recompute")
            return
        if hasattr(found, "activation_checkpointing_enable"):
            found.activation_checkpointing_enable({"use_reentrant": False})
        else:
            found.gradient_checkpointing_enable({"use_reentrant": False})
        self.applied("none")

    def stepped(self, n: int) -> None:
        self.calls = 0


CURES = (Recompute,)
