"""AdamW for a step that never waits: clip factor, skipping and bias correction on the device.

Decoupled weight decay (arXiv 1711.05101), bias-corrected moments (arXiv 1412.6980).  Weights in
half precision keep either float32 masters, or none and are rounded stochastically; moments are
float32, or bfloat16 rounded stochastically (ordinary rounding would freeze the second moment: with
beta2 = 0.999 it changes by at most 0.1 % a step, less than bfloat16 can tell), or 8 bits
(:mod:`brim.train.eightbit`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch

from brim.train import eightbit
from brim.train.arithmetic import (
    CLIP,
    CORRECTION_1,
    CORRECTION_2,
    UPDATE,
    Rule,
    noise_of,
    replace,
    stepped,
)
from brim.train.parallel.shards import first_element, local
from brim.train.rounding import hashed, stochastic_bfloat16


class Update(Protocol):
    """One parameter's update in place; ``control`` is (4,) float32 on the device."""

    def __call__(
        self,
        weight: torch.Tensor,
        master: torch.Tensor | None,
        grad: torch.Tensor,
        mean: torch.Tensor,
        square: torch.Tensor,
        control: torch.Tensor,
        rule: Rule,
    ) -> None: ...


def reference_update(
    weight: torch.Tensor,
    master: torch.Tensor | None,
    grad: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    control: torch.Tensor,
    rule: Rule,
) -> None:
    """Any device, torch operators only."""
    update = control[UPDATE]
    w, m, v = stepped(
        weight if master is None else master, grad, mean.float(), square.float(), control, rule
    )
    if master is not None:
        replace(master, w, update)
    if rule.round_weight or mean.dtype is torch.bfloat16:
        noise = noise_of(weight, rule.seed, rule.first)
        if rule.round_weight:
            w = stochastic_bfloat16(w, noise & 0xFFFF)
        if mean.dtype is torch.bfloat16:
            m = stochastic_bfloat16(m, noise >> 16)
            v = stochastic_bfloat16(v, hashed(noise, 0) & 0xFFFF)
    for target, value in ((weight, w), (mean, m), (square, v)):
        replace(target, value, update)


def best_update(device: torch.device) -> Update:
    """The Triton kernel on a CUDA device that has Triton, else torch operators."""
    if device.type == "cuda":
        try:
            from brim.train import adamw_triton
        except ImportError:
            return reference_update
        return adamw_triton.update
    return reference_update


def best_update8(device: torch.device) -> Callable[..., None]:
    """The same choice for moments of 8 bits."""
    if device.type == "cuda":
        try:
            from brim.train import eightbit_triton
        except ImportError:
            return eightbit.reference_update
        return eightbit_triton.update
    return eightbit.reference_update


class AdamW(torch.optim.Optimizer):
    """See the module.  Call :meth:`prepare` with the gradient's norm, then :meth:`step`.

    ``masters``: keep float32 copies of half-precision weights; without, bfloat16 weights are
    rounded stochastically (float16 weights always need masters).
    ``state_dtype``: float32, bfloat16, or uint8 for moments of 8 bits.
    """

    def __init__(
        self,
        params: Iterable[Any],
        *,
        lr: float = 1e-5,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        masters: bool = True,
        state_dtype: torch.dtype = torch.float32,
        seed: int = 0,
        update: Update | None = None,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        )
        self.masters, self.state_dtype, self.seed = masters, state_dtype, seed
        first = self.param_groups[0]["params"][0]
        self._update = update or best_update(first.device)
        self._update8 = best_update8(first.device)
        # t counts the updates that happened, so it lives where skipping is decided
        self.updates = torch.zeros((), dtype=torch.float64, device=first.device)
        self.control = torch.ones(4, dtype=torch.float32, device=first.device)
        self.attempts = 0
        self._allocate()

    def _allocate(self) -> None:
        """States exist before the first step, so memory is known and a checkpoint fits."""
        for parameter in self._parameters():
            state = self.state[parameter]
            state.update(self._moments(parameter))
            if self.masters and parameter.dtype is not torch.float32:
                state["master"] = parameter.detach().float()

    def _moments(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        dtype = self.state_dtype
        if dtype is torch.uint8:
            if eightbit.fits(parameter):
                return eightbit.allocate(parameter)
            dtype = torch.bfloat16
        return {name: torch.zeros_like(parameter, dtype=dtype) for name in ("mean", "square")}

    def _parameters(self) -> Iterable[torch.Tensor]:
        return (p for group in self.param_groups for p in group["params"])

    @torch.no_grad()
    def prepare(self, norm: torch.Tensor, max_norm: float, grad_scale: torch.Tensor) -> None:
        """Set clipping and skipping from the ``norm`` of the gradients as they are stored.

        Stored gradients are ``grad_scale`` times the true ones (1 without loss scaling).  A norm
        that is not finite skips the update; ``max_norm`` 0 clips nothing.
        """
        finite = torch.isfinite(norm)
        true_norm = norm / grad_scale
        limit = (
            (max_norm / (true_norm + 1e-6)).clamp(max=1.0) if max_norm else true_norm.new_ones(())
        )
        self.updates += finite
        betas = self.param_groups[0]["betas"]
        self.control[CLIP] = limit / grad_scale
        self.control[UPDATE] = finite
        self.control[CORRECTION_1] = 1 - betas[0] ** self.updates
        self.control[CORRECTION_2] = 1 - betas[1] ** self.updates

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:
        """Update every parameter that has a gradient."""
        assert closure is None, "a closure would run the model again"
        seed = self.seed + self.attempts * sum(len(g["params"]) for g in self.param_groups)
        self.attempts += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._step(group, parameter, seed)
                seed += 1

    def _step(self, group: dict[str, Any], parameter: torch.Tensor, seed: int) -> None:
        """A sharded parameter is updated where it lies; its noise is that of the whole one."""
        weight = local(parameter)
        if not weight.numel():
            return  # more ranks than rows: this one holds nothing of it
        assert parameter.grad is not None
        state = {kind: local(value) for kind, value in self.state[parameter].items()}
        master = state.get("master")
        tensors = [weight, master, local(parameter.grad), state["mean"], state["square"]]
        update: Callable[..., None] = self._update
        if "mean_scale" in state:
            update = self._update8
            tensors += [state["mean_scale"], state["square_scale"]]
            tensors = [None if t is None else t.flatten(0, -2) for t in tensors]
        rule = Rule(
            lr=group["lr"],
            decay=group["weight_decay"],
            betas=group["betas"],
            eps=group["eps"],
            seed=seed,
            first=first_element(parameter),
            round_weight=master is None and parameter.dtype is torch.bfloat16,
        )
        update(*tensors, self.control, rule)

    def tensors(self, names: Sequence[str]) -> dict[str, torch.Tensor]:
        """The whole state as named tensors; ``names`` are those of the parameters, in order."""
        found = {
            f"{name}.{kind}": value
            for name, parameter in zip(names, self._parameters(), strict=True)
            for kind, value in self.state[parameter].items()
        }
        attempts = torch.tensor(self.attempts, dtype=torch.int64)
        return found | {"updates": self.updates, "attempts": attempts}

    @torch.no_grad()
    def load_tensors(self, saved: Mapping[str, torch.Tensor], names: Sequence[str]) -> None:
        """Restore what :meth:`tensors` gave; the settings must be the same."""
        for name, parameter in zip(names, self._parameters(), strict=True):
            for kind, value in self.state[parameter].items():
                value.copy_(saved[f"{name}.{kind}"])
        self.updates.copy_(saved["updates"])
        self.attempts = int(saved["attempts"])


def decay_groups(
    named: Iterable[tuple[str, torch.nn.Parameter]], weight_decay: float
) -> list[dict[str, Any]]:
    """Trainable parameters in two groups: norms and biases are not decayed (vectors all)."""
    trainable = [p for _, p in named if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def gradient_norm(parameters: Iterable[torch.Tensor]) -> torch.Tensor:
    """The 2-norm over all gradients (sharded: over this rank's parts), float32, on their device."""
    grads = [local(p.grad) for p in parameters if p.grad is not None]
    norms = torch._foreach_norm(grads, 2, dtype=torch.float32)
    return torch.linalg.vector_norm(torch.stack(norms))
