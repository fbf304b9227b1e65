"""Saved tensors that wait in host memory between the forward and the backward pass.

Copies run beside the computation, on a stream of their own: out while later blocks compute, and
back one tensor ahead of its use, so a block's recomputation hides the way of the next one's input.
"""

from __future__ import annotations

from typing import Any

import torch

LEAST_BYTES = 1 << 20
"""Smaller tensors stay: they cost a launch and bring nothing."""


class Kept:
    """One tensor on its way out, in host memory, or on its way back."""

    __slots__ = ("before", "device", "event", "host", "stream", "tensor")

    def __init__(
        self, tensor: torch.Tensor, stream: torch.cuda.Stream | None, before: Kept | None
    ) -> None:
        self.before, self.device, self.stream = before, tensor.device, stream
        self.tensor: torch.Tensor | None = None
        self.event: torch.cuda.Event | None = None
        pinned = stream is not None
        self.host = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=pinned)
        if stream is None:
            self.host.copy_(tensor)
            return
        stream.wait_stream(torch.cuda.current_stream(tensor.device))
        with torch.cuda.stream(stream):
            self.host.copy_(tensor, non_blocking=True)
        tensor.record_stream(stream)

    def start(self) -> None:
        """Begin the way back; again and again does nothing."""
        if self.tensor is not None:
            return
        if self.stream is None:
            self.tensor = self.host.to(self.device)
            return
        # the stream is in order: what was copied out before has arrived
        with torch.cuda.stream(self.stream):
            self.tensor = self.host.to(self.device, non_blocking=True)
            self.event = torch.cuda.Event()
            self.event.record()

    def back(self) -> torch.Tensor:
        """The tensor on its device; the current stream waits for it, the host does not."""
        self.start()
        found, self.tensor = self.tensor, None
        assert found is not None
        if self.event is not None:
            current = torch.cuda.current_stream(self.device)
            current.wait_event(self.event)
            found.record_stream(current)
        if self.before is not None:
            self.before.start()
            self.before = None
        return found


class HostMemory(torch.autograd.graph.saved_tensors_hooks):
    """While entered, what autograd saves goes to host memory, tensors of ``LEAST_BYTES`` and more.

    One per forward pass: the order in which tensors leave is that in which they come back,
    reversed.
    """

    def __init__(self, least: int = LEAST_BYTES) -> None:
        super().__init__(self._pack, self._unpack)
        self.least = least
        self._last: Kept | None = None
        self._stream: torch.cuda.Stream | None = None

    def _pack(self, tensor: torch.Tensor) -> Any:
        if tensor.nbytes < self.least:
            return tensor
        if tensor.is_cuda and self._stream is None:
            self._stream = torch.cuda.Stream(tensor.device)
        self._last = Kept(tensor, self._stream, self._last)
        return self._last

    @staticmethod
    def _unpack(kept: Any) -> torch.Tensor:
        found: torch.Tensor = kept.back() if isinstance(kept, Kept) else kept
        return found
