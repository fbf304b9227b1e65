"""Activation checkpointing: off, for every second block, or for all.

``torch.utils.checkpoint.checkpoint`` is what transformers, Lightning and FSDP's wrappers call in
the end.  Without it a block runs as it is; its activations are kept and nothing runs twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, compiling, safely
from _brim_hooks.cure_model import Watcher, blocks, pretrained

_OWN = ("use_reentrant", "preserve_rng_state", "context_fn", "determinism_check", "debug",
        "early_stop")  # fmt: skip
NONE, HALF = "none", "half"


class Recompute(Cure):
    ids = ("recompute",)
    never = "the job recomputes nothing"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.calls = 0
        self.by_flags = False  # blocks say themselves whether they are computed again

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [*Watcher.patches(self.called), ("torch.utils.checkpoint", self.patch)]

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
        """Asked at each call of ``checkpoint``."""
        self.calls += 1
        if self.value == NONE:
            self.applied("all")
            return False
        if self.value == HALF and not self.by_flags:
            self.applied("all")
            return self.calls % 2 == 1
        return True

    @safely
    def called(self, model: Any) -> None:
        """A transformers model says in flags which of its parts are computed again."""
        flagged = [m for m in model.modules() if getattr(m, "gradient_checkpointing", False)]
        if self.value == NONE:
            if flagged:
                self.applied("all")
            return
        if not flagged and not self.enable(model):
            return
        if self.value == HALF:
            self.halve(model, was="all" if flagged else "none")
        elif flagged:
            self.unavailable("the job has it so already")
        else:
            self.applied("none")

    def enable(self, model: Any) -> bool:
        found = next(pretrained(model), None)
        if found is None or not getattr(found, "supports_gradient_checkpointing", False):
            if self.value != HALF:  # half of the calls of a job's own may come yet
                self.unavailable("the model is none of transformers' that can recompute")
            return False
        if hasattr(found, "activation_checkpointing_enable"):
            found.activation_checkpointing_enable({"use_reentrant": False})
        else:
            found.gradient_checkpointing_enable({"use_reentrant": False})
        return True

    def halve(self, model: Any, was: str) -> None:
        """Every second block; without flags of the blocks' own, every second call."""
        flagged = [b for b in blocks(model) if getattr(b, "gradient_checkpointing", False)]
        if len(flagged) > 1:
            for block in flagged[1::2]:
                block.gradient_checkpointing = False
            self.by_flags = True
            self.applied(was, "%d of %d blocks" % (len(flagged[::2]), len(flagged)))

    def stepped(self, n: int) -> None:
        self.calls = 0


CURES = (Recompute,)
