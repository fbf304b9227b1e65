"""One optimizer step over one or more rows; nothing in it waits for the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch

from brim.model.batch import PackedBatch, RowCounts
from brim.model.qwen3vl import Qwen3VL
from brim.train.adamw import AdamW, gradient_norm
from brim.train.failures.arrival import Arrival
from brim.train.failures.memory import Sent
from brim.train.parallel.wrap import Alone

SUMMED = tuple(f.name for f in fields(RowCounts) if not f.name.startswith("longest"))
"""The counts of rows that add up over ranks."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step gives, still on the device except ``counts``."""

    loss: torch.Tensor
    """Mean cross-entropy over the scored tokens of the step, float32."""
    norm: torch.Tensor
    """2-norm of the gradient before clipping, float32; not finite when the update was skipped."""
    counts: RowCounts
    """Of this rank's rows."""
    totals: torch.Tensor | None = None
    """:data:`SUMMED` over all ranks, float64; None on one rank."""


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
    """Forward, backward and update of a list of rows; on several ranks, each with its own list.

    The ranks meet where ``parallel`` reduces gradients, and once more in a sum of a few numbers:
    the loss, the squared norm and the counts.  So they all know the mean over the scored tokens of
    all ranks, clip by the same norm and skip the same updates.
    """

    def __init__(
        self,
        model: Qwen3VL,
        optimizer: AdamW,
        *,
        max_norm: float = 1.0,
        scaling: bool = False,
        parallel: Alone | None = None,
    ) -> None:
        self.model, self.optimizer, self.max_norm = model, optimizer, max_norm
        self.parallel = parallel or Alone(model)
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.scale = LossScale(self.optimizer.updates.device, enabled=scaling)
        self.arrival = Arrival(self.scale.scale.device)
        self.sent = Sent(self.parallel)

    def __call__(self, rows: Sequence[PackedBatch], lr: float) -> Outcome:
        """The mean is over the scored tokens of all rows, however they are spread."""
        counts = rows[0].counts
        for row in rows[1:]:
            counts = counts + row.counts
        self.parallel.learn(rows[0])
        if self.parallel.ranks.world == 1:
            loss = self._backward(rows, 1 / max(counts.scored, 1))
            norm = self._update(gradient_norm(self.parameters), self.scale.scale, lr)
            return Outcome(loss, norm, counts)
        return self._together(rows, counts, lr)

    def _together(self, rows: Sequence[PackedBatch], counts: RowCounts, lr: float) -> Outcome:
        """How many tokens the others score is known after the backward pass only, so losses are
        divided by a number that all ranks know, and put right in the update.  It is a power of two:
        nothing is rounded by it.
        """
        world = self.parallel.ranks.world
        # the same on a rank that had to cut its rows
        nominal = 1 << (sum(row.length for row in rows) * world - 1).bit_length()
        loss = self._backward(rows, world / nominal)
        square = gradient_norm(self.parameters).double() ** 2 / self.parallel.copies
        numbers = _on_device([getattr(counts, name) for name in SUMMED], loss.device)
        sums = self.parallel.total(torch.cat([torch.stack([loss.double(), square]), numbers]))
        loss, square, totals = sums[0] / world, sums[1], sums[2:]
        share = totals[SUMMED.index("scored")].clamp(min=1) / nominal
        norm = self._update(square.sqrt().float(), (self.scale.scale * share).float(), lr)
        return Outcome((loss / share).float(), norm, counts, totals)

    def _backward(self, rows: Sequence[PackedBatch], scale: float) -> torch.Tensor:
        """``scale`` times the summed cross-entropy of this rank's rows."""
        loss = torch.zeros((), device=self.scale.scale.device)
        self.sent.nothing()
        for number, row in enumerate(rows, 1):
            with self.parallel.row(last=number == len(rows)):
                part = self.parallel.forward(row, scale)
                if number == len(rows):
                    self.arrival.meet()
                (part * self.scale.scale).backward()
            loss += part.detach()
        return loss

    def _update(self, norm: torch.Tensor, grad_scale: torch.Tensor, lr: float) -> torch.Tensor:
        """``norm`` is that of the gradients as they are stored, ``grad_scale`` times the true."""
        self.optimizer.prepare(norm, self.max_norm, grad_scale)
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.step()
        self.parallel.clear(self.parameters)
        true_norm = norm / grad_scale
        self.scale.update(torch.isfinite(norm).float())
        self.arrival.apart()
        return true_norm


def _on_device(numbers: Sequence[float], device: torch.device) -> torch.Tensor:
    """Without waiting for the device."""
    pinned = device.type == "cuda"
    return torch.tensor(numbers, dtype=torch.float64, pin_memory=pinned).to(
        device, non_blocking=True
    )
