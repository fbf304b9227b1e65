"""The optimizer: one fused kernel, and gradients that are dropped instead of zeroed."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, safely


class Fused(Cure):
    """Set in the parameter groups before the optimizer's first step."""

    ids = ("optimizer.fused",)
    never = "no optimizer has stepped"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.seen: set[int] = set()

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [("torch.optim.optimizer", self.patch)]

    def patch(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self.steps)

    @safely
    def steps(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if id(optimizer) in self.seen:
            return
        self.seen.add(id(optimizer))
        reason = self.why_not(optimizer)
        if reason:
            self.unavailable(reason)
            return
        was = optimizer.param_groups[0].get("fused")
        for group in optimizer.param_groups:
            group["fused"] = self.value
        for parameter, state in optimizer.state.items():  # of a resumed job: made without it
            if "step" in state and hasattr(state["step"], "to"):
                state["step"] = state["step"].to(parameter.device)
        self.applied(bool(was))

    def why_not(self, optimizer: Any) -> str:
        torch = sys.modules["torch"]
        optim = torch.optim
        name = type(optimizer).__name__
        if type(optimizer) not in (optim.Adam, optim.AdamW, optim.SGD, optim.Adagrad):
            return "%s has no fused kernel" % name
        groups = optimizer.param_groups
        if all(bool(g.get("fused")) == self.value for g in groups):
            return "the job has it so already"
        if any(g.get("differentiable") or g.get("capturable") for g in groups):
            return "the optimizer is differentiable or capturable"
        parameters = [p for g in groups for p in g["params"]]
        if not all(p.is_floating_point() for p in parameters):
            return "not all parameters are real floating-point numbers"
        from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

        known = _get_fused_kernels_supported_devices()
        devices = sorted({p.device.type for p in parameters} - set(known))
        if devices:
            return "there is no fused kernel for parameters on %s" % ", ".join(devices)
        if type(optimizer) is optim.Adagrad and parameters[0].device.type != "cpu":
            return "Adagrad's fused kernel is for the CPU"
        return ""


class SetToNone(Cure):
    ids = ("optimizer.set_to_none",)
    never = "the job never calls zero_grad(set_to_none=False)"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [
            ("torch.optim.optimizer", lambda module: self.wrap(module.Optimizer)),
            ("torch.nn.modules.module", lambda module: self.wrap(module.Module)),
        ]

    def wrap(self, kind: Any) -> None:
        original = kind.zero_grad

        @functools.wraps(original)
        def zero_grad(owner: Any, set_to_none: bool = True) -> Any:
            if self.value is not None and set_to_none != self.value:
                self.applied(set_to_none)
                set_to_none = self.value
            return original(owner, set_to_none)

        kind.zero_grad = zero_grad


CURES = (Fused, SetToNone)
