"""One optimizer step over one or more rows; nothing in it waits for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from brim.model.batch import PackedBatch, RowCounts
from brim.model.qwen3vl import Qwen3VL
from brim.train.adamw import AdamW, gradient_norm


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gives, still on the device except ``counts``."""

    loss: torch.Tensor
    """Mean cross-entropy over the scored tokens of the step, float32."""
    norm: torch.Tensor
    """2-norm of the gradient before clipping, float32; not finite when the update was skipped."""
    counts: RowCounts


class LossScale:
    """Loss scaling for float16, with growth and back-off decided on the device.

    The scheme of ``torch.amp.GradScaler`` (double after 2,000 good steps, halve after a bad one),
    which reads the overflow flag on the host in every step.
    """

    def __init__(self, device: torch.device, *, enabled: bool) -> None:
        self.enabled = enabled
        self.scale = torch.full((), 2.0**16 if enabled else 1.0, device=device)
        self.good = torch.zeros((), device=device)
        self.interval = 2000

    def update(self, finite: torch.Tensor) -> None:
        """``finite``: 1 when the last gradients had neither inf nor NaN, else 0."""
        if not self.enabled:
            return
        self.good = (self.good + 1) * finite
        grown = self.good >= self.interval
        self.scale = self.scale * torch.where(finite > 0, torch.where(grown, 2.0, 1.0), 0.5)
        self.good = self.good * ~grown

    def tensors(self) -> dict[str, torch.Tensor]:
        return {"scale": self.scale, "good": self.good}

    def load_tensors(self, saved: dict[str, torch.Tensor]) -> None:
        self.scale, self.good = (saved[n].to(self.scale.device) for n in ("scale", "good"))


class TrainStep:
    """Forward, backward and update of a list of rows."""

    def __init__(
        self, model: Qwen3VL, optimizer: AdamW, *, max_norm: float = 1.0, scaling: bool = False
    ) -> None:
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.scale = LossScale(self.parameters[0].device, enabled=scaling)

    def __call__(self, rows: Sequence[PackedBatch], lr: float) -> Outcome:
        """The mean is over the scored tokens of all rows, however they are spread."""
        counts = rows[0].counts
        for row in rows[1:]:
            counts = counts + row.counts
        loss = torch.zeros((), device=self.scale.scale.device)
        for row in rows:
            part = self.model(row, 1 / max(counts.scored, 1))
            (part * self.scale.scale).backward()
            loss += part.detach()
        norm = self._update(lr)
        return Outcome(loss, norm, counts)

    def _update(self, lr: float) -> torch.Tensor:
        norm = gradient_norm(self.parameters)
        self.optimizer.prepare(norm, self.max_norm, self.scale.scale)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        true_norm = norm / self.scale.scale
        self.scale.update(torch.isfinite(norm).float())
        return true_norm
