"""Rows from shared memory to the device: pinned once, copied beside the computation.

Each slot of the ring is registered with the driver when it is first used (``cudaHostRegister``), so
a copy is one asynchronous transfer at the bus's full rate.  The next row is copied on a stream of
its own while the current one is trained on; its slot goes back when the copy's event has passed,
which is asked, never waited for.  On a CPU the tensors are the shared memory itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brim.data.loader import HostRow, Loader
from brim.data.ring import Layout
from brim.data.rows import Counts


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A row on the device."""

    step: int
    number: int
    tensors: dict[str, torch.Tensor]
    counts: Counts
    samples: tuple[int, ...]


class DeviceRows:
    """Iterates over the loader's rows as tensors on ``device``.

    On a CPU a row's tensors are valid until the next row is asked for.
    """

    def __init__(self, loader: Loader, device: torch.device | str) -> None:
        self.loader = loader
        self.device = torch.device(device)
        cuda = self.device.type == "cuda"
        self._feed = _cuda_rows(loader, self.device) if cuda else _host_rows(loader)

    def __iter__(self) -> Iterator[DeviceRow]:
        return self

    def __next__(self) -> DeviceRow:
        return next(self._feed)


def _host_rows(loader: Loader) -> Iterator[DeviceRow]:
    for row in loader:
        tensors = {name: torch.from_numpy(array) for name, array in row.arrays.items()}
        yield DeviceRow(row.step, row.number, tensors, row.counts, row.samples)
        row.release()


def _cuda_rows(loader: Loader, device: torch.device) -> Iterator[DeviceRow]:
    pins = _Pins(loader)
    stream = torch.cuda.Stream(device)
    copying: deque[tuple[HostRow, torch.Tensor, torch.cuda.Event]] = deque()
    copied: deque[tuple[HostRow, torch.cuda.Event]] = deque()

    def start() -> None:
        row = next(loader, None)
        if row is None:
            return
        with torch.cuda.stream(stream):
            source = pins.pinned(row)
            target = torch.empty(source.shape, dtype=torch.uint8, device=device)
            target.copy_(source, non_blocking=True)
            event = torch.cuda.Event()
            event.record(stream)
        copying.append((row, target, event))

    try:
        start()
        while copying:
            row, target, event = copying.popleft()
            while copied and copied[0][1].query():
                copied.popleft()[0].release()
            start()
            current = torch.cuda.current_stream(device)
            current.wait_event(event)
            # the allocator may not give the memory away before the computation is through with it
            target.record_stream(current)
            copied.append((row, event))
            tensors = views(target, row.layout)
            yield DeviceRow(row.step, row.number, tensors, row.counts, row.samples)
    finally:
        stream.synchronize()
        pins.close()


def views(buffer: torch.Tensor, layout: Layout) -> dict[str, torch.Tensor]:
    """The tensors that lie in a row's bytes, sharing them."""
    found = {}
    for name, offset, shape, dtype in layout:
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        size = int(np.prod(shape)) * kind.itemsize
        found[name] = buffer[offset : offset + size].view(kind).view(shape)
    return found


class _Pins:
    """The ring's slots, registered with the driver one by one."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._slots: dict[int, torch.Tensor] = {}

    def pinned(self, row: HostRow) -> torch.Tensor:
        """The used bytes of a row's slot, page-locked."""
        if row.slot not in self._slots:
            slot = torch.from_numpy(self._loader.ring.slot(row.slot))
            runtime: Any = torch.cuda.cudart()
            status = runtime.cudaHostRegister(slot.data_ptr(), slot.numel(), 0)
            torch.cuda.check_error(int(status))
            self._slots[row.slot] = slot
        _, offset, shape, dtype = row.layout[-1]
        end = offset + int(np.prod(shape)) * np.dtype(dtype).itemsize
        return self._slots[row.slot][:end]

    def close(self) -> None:
        """Unregister; the memory may be unmapped afterwards."""
        runtime: Any = torch.cuda.cudart()
        for slot in self._slots.values():
            runtime.cudaHostUnregister(slot.data_ptr())
        self._slots.clear()
