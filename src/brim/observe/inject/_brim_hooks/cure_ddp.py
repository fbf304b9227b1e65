"""DistributedDataParallel: one reduction per optimizer step, in buckets of another size."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, safely

BEFORE_BUCKETS = 7  # arguments of DistributedDataParallel before bucket_cap_mb
LEARN = 2  # optimizer steps with equally many backward passes, before any reduction is left out


class Buckets(Cure):
    ids = ("ddp.bucket_cap_mb",)
    never = "the job makes no DistributedDataParallel"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [("torch.nn.parallel.distributed", self.patch)]

    def patch(self, module: Any) -> None:
        original = module.DistributedDataParallel.__init__

        @functools.wraps(original)
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:
            was = kwargs.get("bucket_cap_mb")
            by_position = len(args) > BEFORE_BUCKETS
            if not by_position:
                kwargs["bucket_cap_mb"] = self.value
            original(ddp, *args, **kwargs)
            if by_position:
                self.unavailable("the job gives bucket_cap_mb by position")
            else:
                self.applied(25 if was is None else was)

        module.DistributedDataParallel.__init__ = __init__


class NoSync(Cure):
    """Gradients are reduced in the last backward pass of an optimizer step only.

    Which pass is the last is learnt from the first steps.  When a step comes earlier than learnt
    (the end of an epoch), the sums that are still local are averaged before anything reads them:
    before gradients are clipped, and before the optimizer steps.
    """

    ids = ("ddp.no_sync",)
    never = "the job makes no DistributedDataParallel"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.modules: weakref.WeakSet[Any] = weakref.WeakSet()
        self.passes = 0  # backward passes since the optimizer stepped
        self.synced = 0  # of them, those that reduced
        self.counts: list[tuple[int, int]] = []
        self.each = 0  # backward passes per step, once known
        self.inside = False  # a backward pass is under way
        self.local = False  # gradients have been summed on this rank alone

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [
            ("torch.nn.parallel.distributed", self.patch_ddp),
            ("torch.autograd", self.patch_backward),
            ("torch.nn.utils.clip_grad", self.patch_clip),
            ("torch.optim.optimizer", self.patch_optimizer),
        ]

    def patch_ddp(self, module: Any) -> None:
        original = module.DistributedDataParallel.__init__

        @functools.wraps(original)
        def __init__(ddp: Any, *args: Any, **kwargs: Any) -> None:
            original(ddp, *args, **kwargs)
            self.modules.add(ddp)

        module.DistributedDataParallel.__init__ = __init__

    def patch_backward(self, module: Any) -> None:
        original = module.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self.inside:  # of a block that is computed again, on whichever thread
                return original(*args, **kwargs)
            self.inside = True
            try:
                return original(*args, **kwargs)
            finally:
                self.inside = False
                self.passed()

        module.backward = backward

    def patch_clip(self, module: Any) -> None:
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            original = getattr(module, name)

            def clip(*args: Any, _original: Callable[..., Any] = original, **kwargs: Any) -> Any:
                self.average()
                return _original(*args, **kwargs)

            setattr(module, name, functools.wraps(original)(clip))

    def patch_optimizer(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self.average)

    @safely
    def passed(self) -> None:
        """After a backward pass: count, and say whether the next one reduces."""
        if not self.modules:
            return
        self.passes += 1
        self.synced += any(m.require_backward_grad_sync for m in self.modules)
        if self.each:
            self.local = self.passes < self.each
            self.reduce_next(self.passes + 1 >= self.each)

    def reduce_next(self, now: bool) -> None:
        for module in self.modules:
            module.require_backward_grad_sync = now

    @safely
    def average(self, *ignored: Any) -> None:
        """Gradients that are still local are averaged over the ranks, as a reduction would."""
        del ignored
        if not self.local:
            return
        self.local = False
        distributed = sys.modules["torch.distributed"]
        for module in self.modules:
            size = distributed.get_world_size(module.process_group)
            for parameter in module.parameters():
                if parameter.requires_grad and parameter.grad is not None:
                    distributed.all_reduce(parameter.grad, group=module.process_group)
                    parameter.grad.div_(size)

    @safely
    def stepped(self, n: int) -> None:
        counted = (self.passes, self.synced)
        self.passes = self.synced = 0
        if not self.modules:
            return
        if self.each:
            self.reduce_next(self.each == 1)
            return
        self.counts.append(counted)
        if len(self.counts) < LEARN or not self.value:
            return
        passes, synced = self.counts[-1]
        if self.counts[-LEARN:] != [(passes, synced)] * LEARN:
            self.unavailable("the number of backward passes per step changes")
        elif synced < 2:
            self.unavailable("gradients are reduced once per step already")
        elif any(getattr(m, "static_graph", False) for m in self.modules):
            self.unavailable("DistributedDataParallel(static_graph=True) does not allow it")
        else:
            self.each = passes
            self.reduce_next(False)
            self.applied("%d times per step" % synced)


CURES = (Buckets, NoSync)
