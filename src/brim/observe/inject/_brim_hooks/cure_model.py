"""Cures of the model itself, made when the loop first calls it: blocks, patch embedding, kernels.

The first module with trainable parameters that is called from outside of any module, in training
and with gradients, is the model (or what wraps it); it is told by what it is made of, and never by
the name of its class.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from typing import Any

from _brim_hooks.cure import Cure, compiling, safely

TOLERANCE = 2e-2  # relative to the largest value, in bfloat16; a thousandth of it in float32


class Watcher:
    """Calls back before each outermost module's first training forward, until a step is done."""

    one: Watcher | None = None

    def __init__(self) -> None:
        self.callbacks: list[Callable[[Any], None]] = []
        self.seen: set[int] = set()
        self.kind: Any = None
        self.original: Any = None
        self.done = False

    @classmethod
    def patches(cls, callback: Callable[[Any], None]) -> list[tuple[str, Callable[[Any], None]]]:
        """What a cure patches to be called with the model."""
        if cls.one is not None:
            cls.one.callbacks.append(callback)
            return []
        cls.one = cls()
        cls.one.callbacks.append(callback)
        return [
            ("torch.nn.modules.module", cls.one.watch),
            ("torch.optim.optimizer", cls.one.end_with_a_step),
        ]

    def watch(self, module: Any) -> None:
        self.kind, self.original = module.Module, module.Module.__call__
        watcher = self

        def __call__(model: Any, *args: Any, **kwargs: Any) -> Any:
            if compiling():
                return watcher.original(model, *args, **kwargs)
            # what is called inside is not outermost, and compilers see the class as it was
            watcher.kind.__call__ = watcher.original
            try:
                watcher.look(model)
                return watcher.original(model, *args, **kwargs)
            finally:
                if not watcher.done:
                    watcher.kind.__call__ = __call__

        dynamo: Any = getattr(sys.modules["torch"]._C, "_dynamo", None)
        if hasattr(getattr(dynamo, "eval_frame", None), "skip_code"):
            # torch.compile(model) may call it before the frame that it compiles
            dynamo.eval_frame.skip_code(__call__.__code__)
        self.kind.__call__ = __call__

    def look(self, model: Any) -> None:
        if id(model) in self.seen or not model.training or not trains(model):
            return
        # its parts too: a block that backward computes again is called from outside of any module
        self.seen.update(id(part) for part in model.modules())
        for callback in self.callbacks:
            callback(model)

    def end_with_a_step(self, module: Any) -> None:
        def end(*args: Any) -> None:
            self.done = True
            if self.kind is not None:
                self.kind.__call__ = self.original

        module.register_optimizer_step_post_hook(end)


def trains(model: Any) -> bool:
    torch = sys.modules["torch"]
    return torch.is_grad_enabled() and any(p.requires_grad for p in model.parameters())


def blocks(model: Any) -> list[Any]:
    """The repeated blocks: members of lists whose members are of one class and have parameters."""
    torch = sys.modules["torch"]
    found: list[Any] = []
    for part in model.modules():
        if isinstance(part, (torch.nn.ModuleList, torch.nn.Sequential)) and len(part) > 1:
            kinds = {type(block) for block in part}
            simple = {torch.nn.Linear, torch.nn.Embedding, torch.nn.LayerNorm}
            if (
                len(kinds) == 1
                and not kinds & simple
                and next(part[0].parameters(), None) is not None
            ):
                found += [block for block in part if not any(block is b for b in found)]
    inner = {id(m) for block in found for m in block.modules() if m is not block}
    return [block for block in found if id(block) not in inner]


class PatchEmbedding(Cure):
    """A convolution whose window is its whole input is a matrix product."""

    ids = ("patch_embedding.matmul",)
    never = "no module was called with gradients"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return Watcher.patches(self.called)

    @safely
    def called(self, model: Any) -> None:
        torch = sys.modules["torch"]
        found = [m for m in model.modules() if type(m) is torch.nn.Conv3d and covers_once(m)]
        if not self.value or not found:
            return self.unavailable("the model has no Conv3d whose kernel is its stride")
        for conv in found:
            conv.forward = _Product(self, conv)
        return None


def covers_once(conv: Any) -> bool:
    """Every input value is in exactly one window."""
    return (
        conv.kernel_size == conv.stride
        and conv.groups == 1
        and set(conv.dilation) == {1}
        and conv.padding in ("valid", (0,) * len(conv.kernel_size))
    )


class _Product:
    """``forward`` of a convolution whose input is one window: (N, C, *kernel) → (N, out, 1, …)."""

    def __init__(self, cure: PatchEmbedding, conv: Any) -> None:
        self.cure, self.conv, self.original, self.checked = cure, conv, conv.forward, False

    def __call__(self, x: Any) -> Any:
        conv = self.conv
        if x.dim() != conv.weight.dim() or tuple(x.shape[2:]) != tuple(conv.kernel_size):
            self.give_up("its input has more than one window")
            return self.original(x)
        if not self.checked and not self.agrees(x):
            return self.original(x)
        return self.product(x)

    def product(self, x: Any) -> Any:
        weight = self.conv.weight
        out = sys.modules["torch"].nn.functional.linear(
            x.flatten(1), weight.flatten(1), self.conv.bias
        )
        return out.reshape(out.shape + (1,) * (weight.dim() - 2))

    def agrees(self, x: Any) -> bool:
        """The first call is made both ways."""
        self.checked = True
        torch = sys.modules["torch"]
        try:
            with torch.no_grad():
                old, new = self.original(x).float(), self.product(x).float()
                far = float((old - new).abs().max()) if old.numel() else 0.0
                near = TOLERANCE if x.dtype in (torch.bfloat16, torch.float16) else TOLERANCE / 20
                good = old.shape == new.shape and far <= near * max(float(old.abs().max()), 1e-6)
        except Exception as error:
            self.give_up("%s: %s" % (type(error).__name__, error))
            return False
        if good:
            self.cure.applied("Conv3d")
        else:
            self.give_up("the product differs by %.1e" % far)
        return good

    def give_up(self, why: str) -> None:
        self.conv.__dict__.pop("forward", None)
        say = self.cure.failed if self.checked else self.cure.unavailable
        say(why)


class Compile(Cure):
    """Each block compiled on its own; one that does not compile runs as it was."""

    ids = ("compile.blocks",)
    never = "no module was called with gradients"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.count = 0

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return Watcher.patches(self.called)

    @safely
    def called(self, model: Any) -> None:
        found = blocks(model)
        if not self.value or not found:
            return self.unavailable("the model has no list of equal blocks")
        if any(getattr(m, "_compiled_call_impl", None) for m in model.modules()):
            return self.unavailable("the job compiles modules itself")
        import torch._dynamo

        torch._dynamo.config.suppress_errors = True
        for block in found:
            block.compile()
        self.count = len(found)
        return None

    @safely
    def stepped(self, n: int) -> None:
        if not self.count or n != 2:
            return
        frames = sys.modules["torch._dynamo.utils"].counters["frames"]
        if frames.get("ok"):
            self.applied(reason="%d blocks" % self.count)
        else:
            self.failed("no block could be compiled")


class Liger(Cure):
    """Liger's kernels in an instance of a transformers model, as its Trainer would put them."""

    ids = ("liger",)
    never = "no module was called with gradients"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return Watcher.patches(self.called)

    @safely
    def called(self, model: Any) -> None:
        found = next(pretrained(model), None)
        if not self.value or found is None:
            return self.unavailable("the model is none of transformers'")
        if importlib.util.find_spec("liger_kernel") is None:
            return self.unavailable("the package liger-kernel is not installed")
        if next(found.parameters()).device.type == "cpu":
            return self.unavailable("Liger's kernels need an accelerator")
        if any("liger" in type(m).forward.__module__ for m in found.modules()):
            return self.unavailable("the job uses them already")
        from liger_kernel.transformers import (  # type: ignore[import-not-found,unused-ignore]
            _apply_liger_kernel_to_instance,
        )
        from liger_kernel.transformers.monkey_patch import (  # type: ignore[import-not-found,unused-ignore]
            MODEL_TYPE_TO_APPLY_LIGER_FN,
        )

        kind = found.config.model_type
        if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
            return self.unavailable("the installed liger-kernel does not know %s" % kind)
        _apply_liger_kernel_to_instance(model=found)
        return self.applied()


def pretrained(model: Any) -> Iterator[Any]:
    """transformers' models inside, the outermost first."""
    module = sys.modules.get("transformers.modeling_utils")
    if module is not None:
        for part in model.modules():
            if isinstance(part, module.PreTrainedModel):
                yield part


CURES = (PatchEmbedding, Compile, Liger)
