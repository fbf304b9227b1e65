"""TF32, autocast, cuDNN's kernel search: switches of torch that hold for the whole process."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, safely
from _brim_hooks.cure_model import Watcher


class Switch(Cure):
    """A process-wide setting: held at what is wanted, whatever the job sets it to."""

    module = "torch"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.was: Any = None  # the job's own
        self.ready = False

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [(self.module, self.patch)]

    def patch(self, module: Any) -> None:
        del module
        self.ready = True
        self.was = self.get()
        self.hold()

    def get(self) -> Any:
        raise NotImplementedError

    def set(self, value: Any) -> None:
        raise NotImplementedError

    def why_not(self) -> str:
        """Why it has no effect in this job; asked once training is under way."""
        return ""

    def hold(self) -> None:
        if self.ready and self.value is not None:
            now = self.get()
            if now != self.value:
                self.was = now
                self.set(self.value)

    @safely
    def switch(self, wanted: dict[str, Any]) -> None:
        had, self.wanted = self.value, wanted
        if had is None and self.ready:
            self.was = self.get()  # the job may have set it meanwhile
        self.hold()
        if self.value is not None:
            self.tell()
        elif self.ready and had is not None and self.was is not None:
            self.set(self.was)

    @safely
    def stepped(self, n: int) -> None:
        if n > 3 or self.value is None:
            return  # a job sets such things before it trains
        self.hold()
        self.tell()

    def tell(self) -> None:
        reason = self.why_not()
        if reason:
            self.unavailable(reason)
        elif self.was == self.value:
            self.unavailable("the job has it so already")
        else:
            self.applied(self.was)


class Tf32(Switch):
    """``high``: TF32; ``medium``: bfloat16 where torch has it, else TF32.

    Since torch 2.9 each back end has a setting of its own, and a job that uses those may not use
    the older one: then theirs are set.
    """

    ids = ("precision.tf32",)
    never = "torch was not imported"

    def get(self) -> Any:
        torch = sys.modules["torch"]
        try:
            return torch.get_float32_matmul_precision()
        except RuntimeError:  # the job uses the newer settings
            newer = torch.backends.cuda.matmul.fp32_precision
            return "high" if newer == "tf32" else "highest"

    def set(self, value: Any) -> None:
        torch = sys.modules["torch"]
        try:
            torch.set_float32_matmul_precision(value)
            torch.get_float32_matmul_precision()
        except RuntimeError:
            newer = "ieee" if value == "highest" else "tf32"
            torch.backends.cuda.matmul.fp32_precision = newer

    def hold(self) -> None:
        super().hold()
        torch = sys.modules.get("torch")
        if self.ready and self.value is not None and torch is not None:
            cudnn = torch.backends.cudnn
            conv = getattr(cudnn, "conv", None)
            if conv is not None and hasattr(conv, "fp32_precision"):
                if conv.fp32_precision == "ieee":
                    conv.fp32_precision = "tf32"
            elif not cudnn.allow_tf32:
                cudnn.allow_tf32 = True

    def why_not(self) -> str:
        torch = sys.modules["torch"]
        if not torch.cuda.is_initialized():
            return "the job does not use a CUDA device"
        if not torch.version.hip and torch.cuda.get_device_capability() < (8, 0):
            return "devices before Ampere have no TF32"
        return ""


class CudnnBenchmark(Switch):
    ids = ("cudnn.benchmark",)
    never = "torch was not imported"

    def get(self) -> Any:
        return sys.modules["torch"].backends.cudnn.benchmark

    def set(self, value: Any) -> None:
        sys.modules["torch"].backends.cudnn.benchmark = value

    def why_not(self) -> str:
        if not sys.modules["torch"].cuda.is_initialized():
            return "the job does not use a CUDA device"
        return ""


class Autocast(Cure):
    """The model's forward under autocast; its weights stay as they are."""

    ids = ("precision.autocast",)
    never = "no module was called with gradients"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return Watcher.patches(self.called)

    @safely
    def called(self, model: Any) -> None:
        torch = sys.modules["torch"]
        device = next(model.parameters()).device.type
        if self.value == "float16":
            return self.unavailable("float16 needs loss scaling, which the loop has to do")
        if any(p.dtype != torch.float32 for p in model.parameters() if p.is_floating_point()):
            return self.unavailable("the model's weights are not float32")
        if torch.is_autocast_enabled(device):
            return self.unavailable("the job uses autocast already")
        forward, dtype = model.forward, getattr(torch, self.value)

        @functools.wraps(forward)
        def autocasted(*args: Any, **kwargs: Any) -> Any:
            with torch.autocast(device, dtype=dtype):
                return forward(*args, **kwargs)

        model.forward = autocasted
        return self.applied("float32")


CURES = (Tf32, CudnnBenchmark, Autocast)
