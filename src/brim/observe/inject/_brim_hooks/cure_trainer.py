"""What only a trainer's own arguments can change: the micro-batch, at the same batch per step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, safely


class MicroBatch(Cure):
    """``per_device_train_batch_size`` × ``gradient_accumulation_steps`` stays what it is."""

    ids = ("batch.micro",)
    never = "the job's loop is not that of transformers' Trainer"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [("transformers.training_args", self.patch)]

    def patch(self, module: Any) -> None:
        original = module.TrainingArguments.__post_init__

        @functools.wraps(original)
        def __post_init__(arguments: Any, *args: Any, **kwargs: Any) -> None:
            self.change(arguments)
            original(arguments, *args, **kwargs)

        module.TrainingArguments.__post_init__ = __post_init__

    @safely
    def change(self, arguments: Any) -> None:
        was = int(arguments.per_device_train_batch_size)
        total = was * int(arguments.gradient_accumulation_steps)
        if self.value == was:
            return self.unavailable("the job has it so already")
        if getattr(arguments, "auto_find_batch_size", False):
            return self.unavailable("auto_find_batch_size chooses it")
        if total % self.value:
            return self.unavailable("%d samples per step are no multiple of it" % total)
        arguments.per_device_train_batch_size = self.value
        arguments.gradient_accumulation_steps = total // self.value
        return self.applied(was, "gradient_accumulation_steps %d" % (total // self.value))


CURES = (MicroBatch,)
