"""Workers, prefetch, pinning and persistence of the training loader.

Changed when the loop asks a ``DataLoader`` for its iterator, and only if it is the training
loop's: gradients are on and no model is in evaluation.  With a map-style data set the sampler
lives in the training process, so the samples and their order stay the same whatever the workers;
random numbers that a data set draws (augmentation) come from the workers' seeds and so differ.
An ``IterableDataset`` shards itself by its number of workers: that number is left alone.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from _brim_hooks import recorder as _r
from _brim_hooks.cure import Cure, safely

WORKERS, PREFETCH = "loader.num_workers", "loader.prefetch_factor"
PIN, PERSISTENT = "loader.pin_memory", "loader.persistent_workers"


class Loader(Cure):
    ids = (WORKERS, PREFETCH, PIN, PERSISTENT)
    never = "no torch DataLoader was iterated for training"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [("torch.utils.data.dataloader", self.patch)]

    def patch(self, module: Any) -> None:
        original = module.DataLoader.__iter__

        @functools.wraps(original)
        def __iter__(loader: Any) -> Any:
            before = self.adjust(loader)
            if not before:
                self.keep_order(loader)
                return original(loader)
            draws = Draws(loader)
            try:
                return original(loader)
            except Exception as error:  # workers that cannot be started, say
                for id in self.wanted:
                    self.failed(error, id)
                vars(loader).update(before)
                draws.undo()
                return original(loader)

        module.DataLoader.__iter__ = __iter__

    @safely
    def adjust(self, loader: Any) -> dict[str, Any] | None:
        """Set what is wanted on a training loader, once; its attributes as they were before."""
        own = vars(loader)
        if "_brim_cured" in own or not trains():
            return None
        before = {name: own[name] for name in ("num_workers", "prefetch_factor", "pin_memory",
                                               "persistent_workers")}  # fmt: skip
        own["_brim_cured"] = True
        self._workers(loader, own)
        self._prefetch(own)
        self._pin(own)
        self._persistent(loader, own)
        return before

    @safely
    def keep_order(self, loader: Any) -> None:
        """Without persistence each epoch draws a seed for its workers before the sampler draws its
        own.  Drawn here too, the samples of later epochs stay in the order that they had."""
        own = vars(loader)
        if own.get("_brim_kept") and own.get("_iterator") is not None:
            torch = sys.modules["torch"]
            torch.empty((), dtype=torch.int64).random_(generator=loader.generator)

    def _workers(self, loader: Any, own: dict[str, Any]) -> None:
        wanted = self.wanted.get(WORKERS)
        if wanted is None or wanted == own["num_workers"]:
            return self._same(WORKERS, wanted)
        if is_iterable(loader):
            return self.unavailable(
                "an IterableDataset shards itself by its workers: another number of them would "
                "give other batches", WORKERS,
            )  # fmt: skip
        was, own["num_workers"] = own["num_workers"], wanted
        if not wanted:
            own.update(prefetch_factor=None, persistent_workers=False)
        elif own["prefetch_factor"] is None:
            own["prefetch_factor"] = 2
        return self.applied(was, id=WORKERS)

    def _prefetch(self, own: dict[str, Any]) -> None:
        wanted, was = self.wanted.get(PREFETCH), own["prefetch_factor"]
        if wanted is None or wanted == was:
            return self._same(PREFETCH, wanted)
        if not own["num_workers"]:
            return self.unavailable("the loader has no workers", PREFETCH)
        own["prefetch_factor"] = wanted
        return self.applied(was, id=PREFETCH)

    def _pin(self, own: dict[str, Any]) -> None:
        wanted, was = self.wanted.get(PIN), bool(own["pin_memory"])
        if wanted is None or wanted == was:
            return self._same(PIN, wanted)
        if wanted and not has_accelerator():
            return self.unavailable("there is no accelerator to copy to", PIN)
        own["pin_memory"] = wanted
        return self.applied(was, id=PIN)

    def _persistent(self, loader: Any, own: dict[str, Any]) -> None:
        wanted, was = self.wanted.get(PERSISTENT), bool(own["persistent_workers"])
        if wanted is None or wanted == was:
            return self._same(PERSISTENT, wanted)
        if not own["num_workers"]:
            return self.unavailable("the loader has no workers", PERSISTENT)
        if wanted and hasattr(loader.dataset, "set_epoch"):
            return self.unavailable(
                "the data set has set_epoch(), which workers that are kept would not see",
                PERSISTENT,
            )
        own["persistent_workers"] = own["_brim_kept"] = wanted
        return self.applied(was, id=PERSISTENT)

    def _same(self, id: str, wanted: Any) -> None:
        if wanted is not None:
            self.unavailable("the job has it so already", id)


class Draws:
    """Random numbers that making an iterator draws: seeds of the workers and of the sampler."""

    def __init__(self, loader: Any) -> None:
        torch = sys.modules["torch"]
        self.set_state, self.state = torch.set_rng_state, torch.get_rng_state()
        self.own = getattr(loader, "generator", None)
        self.own_state = self.own.get_state() if self.own is not None else None

    def undo(self) -> None:
        self.set_state(self.state)
        if self.own is not None:
            self.own.set_state(self.own_state)


def trains() -> bool:
    """Is this the training loop of the training process, and not an evaluation?"""
    torch = sys.modules["torch"]
    rec = _r.current
    if rec is not None and (not rec.mine() or rec.evaluating is not None):
        return False
    info = sys.modules.get("torch.utils.data._utils.worker")
    if info is not None and info.get_worker_info() is not None:
        return False
    return bool(torch.is_grad_enabled()) and not torch.is_inference_mode_enabled()


def is_iterable(loader: Any) -> bool:
    data = sys.modules["torch.utils.data"]
    return isinstance(loader.dataset, data.IterableDataset)


def has_accelerator() -> bool:
    torch = sys.modules["torch"]
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None:
        return bool(accelerator.is_available())
    return bool(torch.cuda.is_available())


CURES = (Loader,)
