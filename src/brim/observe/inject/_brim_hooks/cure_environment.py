"""Knobs that are variables, set before the job started: here it only says if they took effect."""

from __future__ import annotations

import os
import sys
from typing import Any

from _brim_hooks.cure import Cure, safely


class Allocator(Cure):
    ids = ("allocator.expandable_segments",)
    never = "the job does not use a CUDA device"

    @safely
    def stepped(self, n: int) -> None:
        torch = sys.modules["torch"]
        if n > 1 or not torch.cuda.is_initialized():
            return
        if torch.cuda.get_allocator_backend() != "native":
            self.unavailable("the job uses an allocator of its own")
        else:
            self.applied()


class Nccl(Cure):
    ids = ("nccl.algo", "nccl.proto", "nccl.nchannels")
    never = "the job has no NCCL process group"

    @safely
    def stepped(self, n: int) -> None:
        if n == 1 and _uses_nccl():
            for id in self.wanted:
                self.applied(id=id)


def _uses_nccl() -> bool:
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return False
    return "nccl" in str(distributed.get_backend()) or os.environ.get("BACKEND") == "nccl"


CURES = (Allocator, Nccl)
