"""``empty_cache()`` and ``gc.collect()`` in the training loop: none, or every so many steps.

Calls before the first optimizer step, in an evaluation, and in the handling of an exception (a
loop that recovers from a lack of memory) go through.
"""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from typing import Any

from _brim_hooks import recorder as _r
from _brim_hooks.cure import Cure, safely


class Flush(Cure):
    ids = ("memory.flush",)
    never = "the loop calls neither empty_cache() nor gc.collect()"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.steps = 0
        self.done: dict[str, int] = {}  # function → step at which it was last let through

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        gc.collect = self.wrap(gc.collect, 0)
        return [
            ("torch.cuda.memory", self.patch_memory),
            ("torch.accelerator.memory", self.patch_memory),
        ]

    def patch_memory(self, module: Any) -> None:
        module.empty_cache = self.wrap(module.empty_cache, None)

    def wrap(self, original: Callable[..., Any], nothing: Any) -> Callable[..., Any]:
        name = "%s.%s" % (original.__module__, original.__name__)

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.lets_through(name) is not False:
                return original(*args, **kwargs)
            return nothing

        return call

    def stepped(self, n: int) -> None:
        self.steps = n

    @safely
    def lets_through(self, name: str) -> bool:
        rec = _r.current
        if self.value is None or not self.steps or sys.exc_info()[0] is not None:
            return True
        if rec is not None and (not rec.mine() or rec.evaluating is not None):
            return True
        self.applied(was="in the loop", reason=name)
        if self.value and self.steps - self.done.get(name, 0) >= self.value:
            self.done[name] = self.steps
            return True
        return False


CURES = (Flush,)
