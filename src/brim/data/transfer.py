"""Rows from shared memory to the device: pinned once, copied and cut beside the computation.

Each slot of the ring is registered with the driver when it is first used (``cudaHostRegister``), so
a copy is one asynchronous transfer at the bus's full rate, on a stream of its own; the pictures are
cut into patches there too.  What is computed next waits for it on the device, not here.  The slot
goes back when the copy's event has passed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from brim.data.geometry import Vision
from brim.data.loader import HostRow, Loader
from brim.data.pixels import cut
from brim.data.ring import Layout
from brim.data.rows import CLIPS, STILLS, Counts

Slot = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row on the device."""

    step: int
    number: int
    tensors: dict[str, torch.Tensor]
    counts: Counts
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Arriving:
    """A row under way."""

    tensors: dict[str, torch.Tensor]
    event: torch.cuda.Event | None = None

    def wait(self) -> dict[str, torch.Tensor]:
        """The tensors, for what is computed next on the current stream."""
        if self.event is None:
            return self.tensors
        computing = torch.cuda.current_stream(next(iter(self.tensors.values())).device)
        computing.wait_event(self.event)
        # the allocator may not give the memory away before the computation is through with it
        for tensor in {t.untyped_storage().data_ptr(): t for t in self.tensors.values()}.values():
            tensor.record_stream(computing)
        return self.tensors


class Transfer:
    """Copies rows of a loader to a device and gives their memory back.

    Rows whose pictures the loader left whole are cut into ``patches`` and ``video_patches``:
    uint8, or with a floating ``dtype`` normalised already.
    """

    def __init__(
        self,
        device: torch.device,
        vision: Vision | None = None,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        self.device, self.dtype = device, dtype
        self.vision = vision or Vision()
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pinned: dict[int, Slot] = {}
        self._refused: set[int] = set()
        self._copying: deque[tuple[torch.cuda.Event, HostRow]] = deque()

    def __call__(self, row: HostRow) -> dict[str, torch.Tensor]:
        """The row's tensors on the device, for what is computed next."""
        return self.start(row).wait()

    def start(self, row: HostRow) -> Arriving:
        """Begin to copy; the row is released when its memory may be written again."""
        used = max(offset + _size(shape, dtype) for _, offset, shape, dtype in row.layout)
        host = torch.from_numpy(row.memory[:used])
        if self._stream is None:
            tensors = self._cut(views(host.clone(), row.layout), row)
            row.release()
            return Arriving(tensors)
        self._pin(row.memory)
        with torch.cuda.stream(self._stream):
            buffer = host.to(self.device, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
            tensors = self._cut(views(buffer, row.layout), row)
            ready = torch.cuda.Event()
            ready.record()
        self._copying.append((copied, row))
        self._release()
        return Arriving(tensors, ready)

    def close(self) -> None:
        """Wait for the copies and unpin the loader's memory.

        Memory that goes away while it is pinned would be read again, old pages and all, when
        another loader's memory lands at the same address.
        """
        for event, row in self._copying:
            event.synchronize()
            row.release()
        self._copying.clear()
        runtime: Any = torch.cuda.cudart() if self._pinned else None
        for address in self._pinned:
            runtime.cudaHostUnregister(address)
        self._pinned.clear()

    def _cut(self, tensors: dict[str, torch.Tensor], row: HostRow) -> dict[str, torch.Tensor]:
        if STILLS.table not in tensors:
            return tensors
        for form, moments in ((STILLS, 1), (CLIPS, self.vision.temporal)):
            tensors[form.patches] = cut(
                tensors.pop(form.pixels),
                tensors.pop(form.table),
                torch.from_numpy(row.arrays[form.table]),
                moments=moments,
                patch=self.vision.patch,
                merge=self.vision.merge,
                dtype=self.dtype,
            )
        return tensors

    def _release(self) -> None:
        """Free what has been copied; at most one copy may still be under way."""
        while self._copying:
            event, row = self._copying[0]
            if len(self._copying) > 1:
                event.synchronize()  # a copy waits for no kernel: milliseconds
            elif not event.query():
                return
            row.release()
            self._copying.popleft()

    def _pin(self, slot: Slot) -> None:
        address = slot.ctypes.data
        if address not in self._pinned and address not in self._refused:
            runtime: Any = torch.cuda.cudart()
            failed = int(runtime.cudaHostRegister(address, slot.nbytes, 0))
            if failed:  # no locked memory allowed, say: copies are slower, and right
                self._refused.add(address)
            else:
                self._pinned[address] = slot  # keeps the mapping while it is pinned


class DeviceRows:
    """Iterates over the loader's rows as tensors on ``device``, the next one always under way."""

    def __init__(
        self,
        loader: Loader,
        device: torch.device | str,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        self.loader = loader
        self.device = torch.device(device)
        self._transfer = Transfer(self.device, loader.prepared.vision, dtype)
        self._feed = self._rows()

    def __iter__(self) -> Iterator[DeviceRow]:
        return self

    def __next__(self) -> DeviceRow:
        return next(self._feed)

    def _rows(self) -> Iterator[DeviceRow]:
        ahead: deque[tuple[HostRow, Arriving]] = deque()
        try:
            for row in self.loader:
                ahead.append((row, self._transfer.start(row)))
                if len(ahead) > 1:
                    yield _arrived(*ahead.popleft())
            while ahead:
                yield _arrived(*ahead.popleft())
        finally:
            self._transfer.close()


def _arrived(row: HostRow, arriving: Arriving) -> DeviceRow:
    return DeviceRow(row.step, row.number, arriving.wait(), row.counts, row.samples)


def views(buffer: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
    """The tensors that lie in a row's bytes, sharing them."""
    found = {}
    for name, offset, shape, dtype in layout:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        found[name] = buffer[offset : offset + _size(shape, dtype)].view(kind).view(shape)
    return found


def _size(shape: Sequence[int], dtype: str) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize
