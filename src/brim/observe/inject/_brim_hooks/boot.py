"""Patches modules right after they are imported, so that nothing is imported for brim's sake."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


class PostImport:
    """A meta path finder that finds nothing itself: it lets others find a module, then calls back.

    The loader object stays the original one (only its ``exec_module`` is wrapped on the instance,
    until it is called), so ``inspect``, ``importlib.resources`` and pickling see what they always
    saw.
    """

    def __init__(self, callbacks: dict[str, Callable[[Any], None]]) -> None:
        self.callbacks = {name: [callback] for name, callback in callbacks.items()}

    def add(self, name: str, callback: Callable[[Any], None]) -> None:
        """One more for a module, called after those that it has."""
        self.callbacks.setdefault(name, []).append(callback)

    def install(self) -> None:
        for name in list(self.callbacks):
            if name in sys.modules:
                self._call(name, sys.modules[name])
        sys.meta_path.insert(0, self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self.callbacks:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None:
                self._wrap(name, spec)
                return spec
        return None

    def _wrap(self, name: str, spec: Any) -> None:
        loader = spec.loader
        execute = getattr(loader, "exec_module", None)
        if execute is None or isinstance(loader, type):
            return

        def exec_module(module: Any) -> None:
            vars(loader).pop("exec_module", None)  # wrapped twice by a finder that asks again
            execute(module)
            self._call(name, module)

        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass  # a loader with slots: this module stays unpatched

    def _call(self, name: str, module: Any) -> None:
        for callback in self.callbacks.pop(name, ()):
            try:
                callback(module)
            except Exception as error:
                from _brim_hooks import recorder

                recorder.failed(name, error)


_started = False  # in this process; its children by fork inherit what is patched


def start() -> None:
    """Arm the hooks in this process; cheap when torch is never imported.

    Called again, it begins a new measurement with the hooks that are there.
    """
    global _started
    from _brim_hooks import cure, interpreter, loader, recorder, training, transfers, worker

    recorder.arm()
    recorder.seen("python")
    if _started:
        return
    _started = True
    interpreter.arm()
    hooks = PostImport(
        {
            "torch.optim.optimizer": training.patch_optimizer,
            "torch.autograd": training.patch_backward,
            "torch.nn.modules.module": training.patch_module,
            "torch.serialization": training.patch_save,
            "safetensors.torch": training.patch_safetensors,
            "torch.cuda.memory": training.patch_cuda_memory,
            "torch._dynamo.callback": training.patch_dynamo,
            "torch.distributed.distributed_c10d": training.patch_collectives,
            "torch.nn.parallel.distributed": training.patch_ddp,
            "torch._tensor": transfers.patch_tensor,
            "torch.utils.data.dataloader": loader.patch,
            "torch.utils.data._utils.worker": worker.patch_worker,
            "torch.utils.data._utils.fetch": worker.patch_fetch,
        }
    )
    for module, patch in cure.arm():
        hooks.add(module, patch)
    hooks.install()
