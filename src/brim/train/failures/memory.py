"""Memory that runs out on one rank while the others wait for it.

A step can be repeated on its own as long as the rank has not sent anything of it: the others wait a
little longer.  After that its part of the exchange is missing and cannot be made up, so the run
restarts (torchrun does, with --max-restarts), and all ranks recompute more from then on.
"""

from __future__ import annotations

import contextlib
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from brim.errors import BrimError
from brim.files import write_atomic
from brim.model.batch import PackedBatch
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.model.split import split
from brim.train.parallel.blank import with_tower
from brim.train.parallel.wrap import Alone, Replicated

_FILE = "recompute.json"
_BLANK = 64
"""Vision rows of a part without pictures."""


class RestartNeeded(BrimError):
    """This process cannot go on; the run can, from its last checkpoint."""


class Sent:
    """Whether this rank has sent any gradient of the running step.

    A bucket of DDP leaves only after all its parameters have their gradients, and the head and the
    last norm have theirs before any other.
    """

    def __init__(self, parallel: Alone) -> None:
        self._parallel = parallel
        self._gradients = False
        if isinstance(parallel, Replicated):
            for parameter in _first_to_learn(parallel.model):
                parameter.register_post_accumulate_grad_hook(self._seen)

    def nothing(self) -> None:
        """A step begins."""
        self._gradients = False

    @property
    def anything(self) -> bool:
        """True whenever that is not certain."""
        copies = isinstance(self._parallel, Replicated)
        return self._parallel.ranks.world > 1 and (self._gradients or not copies)

    def _seen(self, _: Any) -> None:
        if isinstance(self._parallel, Replicated) and self._parallel.reducing:
            self._gradients = True


def _first_to_learn(model: Qwen3VL) -> list[torch.nn.Parameter]:
    """Those whose gradients come first; all where that is not certain."""
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if "norm.weight" not in named:
        return list(named.values())
    return [named[name] for name in ("head.weight", "norm.weight") if name in named]


def remember(folder: Path, recompute: Recompute, identity: str) -> None:
    """For the ranks that start next; ``identity`` is the data's."""
    kept = {
        "text": recompute.text_blocks,
        "vision": recompute.vision_blocks,
        "offload": recompute.offload,
        "data": identity,
    }
    with contextlib.suppress(OSError):  # a full disk: the next start learns it again
        folder.mkdir(parents=True, exist_ok=True)
        write_atomic(folder / _FILE, json.dumps(kept).encode())


def remembered(folder: Path, identity: str) -> Recompute:
    """What an earlier start of the same run learnt; nothing when the data are others."""
    try:
        kept = json.loads((folder / _FILE).read_bytes())
        if kept["data"] == identity:
            return Recompute(
                text_blocks=kept["text"],
                vision_blocks=kept["vision"],
                offload=kept.get("offload", False),
            )
    except (OSError, ValueError, KeyError, TypeError):
        pass  # there was no such start
    return Recompute(text_blocks=0, vision_blocks=0)


def at_least(model: Qwen3VL, text: int, vision: int) -> None:
    """Recompute as many blocks as another rank does."""
    now = model.recompute
    if (text, vision) != (now.text_blocks, now.vision_blocks):
        model.recompute = replace(
            now,
            text_blocks=max(text, now.text_blocks),
            vision_blocks=max(vision, now.vision_blocks),
        )


def more_recomputed(model: Qwen3VL) -> Recompute | None:
    """A quarter more of each tower's blocks; when all are recomputed already, their inputs on the
    host; None when they lie there."""
    text, vision = len(model.blocks), len(model.visual.blocks)
    now = model.recompute
    if now.text_blocks >= text and now.vision_blocks >= vision:
        return None if now.offload else replace(now, offload=True)
    return replace(
        now,
        text_blocks=min(text, now.text_blocks + -(-text // 4)),
        vision_blocks=min(vision, now.vision_blocks + -(-vision // 4)),
    )


class Halving:
    """Rows that are cut in two because a step finds no room even so."""

    TIMES, STEPS = 3, 100
    """So often in so many steps, and all rows are cut from then on."""

    def __init__(self) -> None:
        self.always = False
        self._seen: deque[int] = deque(maxlen=self.TIMES)

    def planned(self, rows: Sequence[PackedBatch]) -> Sequence[PackedBatch]:
        """The rows of a step as it begins."""
        return (halves(rows) or rows) if self.always else rows

    def happened(self, step: int) -> None:
        """A step had to be cut; the same one counts once."""
        if step not in self._seen:
            self._seen.append(step)
        often = len(self._seen) == self.TIMES and self._seen[-1] - self._seen[0] < self.STEPS
        self.always = self.always or often


def halves(rows: Sequence[PackedBatch]) -> list[PackedBatch] | None:
    """Each row in two; None when every row is a single document.

    The tower runs on both parts of a row with pictures: on several ranks others may wait for its
    gradients.
    """
    parts: list[PackedBatch] = []
    for row in rows:
        blank = min(_BLANK, row.vision_length)
        parts += [with_tower(part, blank) if blank else part for part in split(row)]
    return parts if len(parts) > len(rows) else None
