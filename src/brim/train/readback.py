"""Values of past steps, read without waiting for the device."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

Tag = TypeVar("Tag")


@dataclass(slots=True)
class _Pending(Generic[Tag]):
    tag: Tag
    values: torch.Tensor
    event: torch.cuda.Event | None


class Readback(Generic[Tag]):
    """A queue of small results on their way to the host.

    ``depth`` also bounds how far the host runs ahead: pushing result n waits for result
    n - ``depth``, while the device still has ``depth`` - 1 whole steps queued.  ``exact``: results
    arrive at that push and never earlier, so that all ranks see them at the same one.
    """

    def __init__(self, depth: int = 2, *, exact: bool = False) -> None:
        self.depth, self.exact = depth, exact
        self._pending: deque[_Pending[Tag]] = deque()

    def push(self, tag: Tag, *scalars: torch.Tensor) -> list[tuple[Tag, list[float]]]:
        """Send 0-dim tensors on their way; returns the results that have arrived by now."""
        values = torch.stack([s.detach().float() for s in scalars])
        event = None
        if values.is_cuda:
            pinned = torch.empty(values.shape, pin_memory=True)
            values = pinned.copy_(values, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        self._pending.append(_Pending(tag, values, event))
        arrived = []
        while self._pending and (len(self._pending) > self.depth or self._arrived()):
            arrived.append(self._take())
        return arrived

    def drain(self) -> list[tuple[Tag, list[float]]]:
        """Wait for everything that is under way."""
        return [self._take() for _ in range(len(self._pending))]

    def _arrived(self) -> bool:
        event = self._pending[0].event
        return not self.exact and (event is None or event.query())

    def _take(self) -> tuple[Tag, list[float]]:
        first = self._pending.popleft()
        if first.event is not None:
            first.event.synchronize()
        return first.tag, first.values.tolist()
