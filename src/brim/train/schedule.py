"""The learning rate of a step."""

from __future__ import annotations

import math

from brim.train.config import OptimizerTable


def learning_rate(table: OptimizerTable, step: int, steps: int) -> float:
    """For step 0, 1, …, ``steps`` - 1: a linear warm-up that reaches the full rate, then the
    schedule, which would reach ``min_lr_ratio`` at step ``steps``."""
    warmup = table.warmup_steps or round(table.warmup_ratio * steps)
    if step < warmup:
        return table.learning_rate * (step + 1) / warmup
    if table.lr_scheduler_type == "constant":
        return table.learning_rate
    done = min(1.0, (step - warmup) / max(1, steps - warmup))
    share = (1 + math.cos(math.pi * done)) / 2 if table.lr_scheduler_type == "cosine" else 1 - done
    return table.learning_rate * (table.min_lr_ratio + (1 - table.min_lr_ratio) * share)
