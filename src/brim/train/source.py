"""Rows from the loader to the device: one copy a row, beside the step that is running."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from brim.data.loader import HostRow, Loader, State, fingerprint
from brim.data.prepare import Prepared
from brim.model.batch import PackedBatch

Slot = NDArray[np.uint8]


class Transfer:
    """Copies rows of a loader to a device and gives their memory back.

    On a CUDA device the loader's memory is pinned slot by slot as it is first seen, and copies run
    on a stream of their own; what is computed next waits for its copy on the device, not here.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._pinned: dict[int, Slot] = {}
        self._refused: set[int] = set()
        self._copying: deque[tuple[torch.cuda.Event, HostRow]] = deque()

    def __call__(self, row: HostRow, slot: Slot) -> PackedBatch:
        """``slot``: the bytes of the slot that holds ``row``."""
        used = max(offset + _size(shape, dtype) for _, offset, shape, dtype in row.layout)
        host = torch.from_numpy(slot[:used])
        buffer = self._copy(row, host, slot)
        arrays: dict[str, Any] = {
            name: _view(buffer, offset, shape, dtype) for name, offset, shape, dtype in row.layout
        }
        fields = row.fields()
        return PackedBatch.from_arrays({**fields, **arrays})

    def close(self) -> None:
        """Wait for the copies and unpin the loader's memory.

        Memory that goes away while it is pinned would be read again, old pages and all, when
        another loader's memory lands at the same address.
        """
        for event, row in self._copying:
            event.synchronize()
            row.release()
        self._copying.clear()
        for address in self._pinned:
            torch.cuda.cudart().cudaHostUnregister(address)
        self._pinned.clear()

    def _copy(self, row: HostRow, host: torch.Tensor, slot: Slot) -> torch.Tensor:
        if self._stream is None:
            copied = host.clone()
            row.release()
            return copied
        self._pin(slot)
        with torch.cuda.stream(self._stream):
            buffer = host.to(self.device, non_blocking=True)
            event = torch.cuda.Event()
            event.record()
        computing = torch.cuda.current_stream(self.device)
        computing.wait_event(event)
        buffer.record_stream(computing)
        self._copying.append((event, row))
        self._release()
        return buffer

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
            failed = int(torch.cuda.cudart().cudaHostRegister(address, slot.nbytes, 0))
            if failed:  # no locked memory allowed, say: copies are slower, and right
                self._refused.add(address)
            else:
                self._pinned[address] = slot  # keeps the mapping while it is pinned


class LoadedRows:
    """:class:`brim.train.loop.Rows` of a prepared data set, for one rank."""

    def __init__(
        self,
        prepared: Prepared,
        device: torch.device,
        *,
        epochs: int,
        evaluated: Prepared | None = None,
        run_dir: Path | None = None,
    ) -> None:
        self.prepared, self.evaluated, self.run_dir = prepared, evaluated, run_dir
        self.epochs = epochs
        self._transfer = Transfer(device)
        self._loader: Loader | None = None

    def steps(self) -> int:
        return self.prepared.plan.steps(self.epochs)

    def identity(self) -> str:
        """Fingerprint of everything that decides which sample is shown when."""
        return fingerprint(self.prepared.plan)

    def fetch(self, step: int) -> Sequence[PackedBatch]:
        loader = self._at(step)
        rows = self.prepared.config.rows_per_step
        return [self._transfer(row, loader.ring.slot(row.slot)) for row in _take(loader, rows)]

    def evaluation(self) -> Iterator[PackedBatch]:
        if self.evaluated is None:
            return
        stop = self.evaluated.plan.steps(1)
        transfer = Transfer(self._transfer.device)
        with Loader(self.evaluated, stop=stop, run_dir=self.run_dir) as loader:
            try:
                for row in loader:
                    yield transfer(row, loader.ring.slot(row.slot))
            finally:
                transfer.close()

    def close(self) -> None:
        self._transfer.close()
        if self._loader is not None:
            self._loader.close()
            self._loader = None

    def _at(self, step: int) -> Loader:
        """A loader whose next row is the first of ``step``."""
        if self._loader is None or self._loader.step != step:
            self.close()
            plan = self.prepared.plan
            plan.locate(step)  # learns where the epochs before it end
            state = State(step=step, epoch_starts=list(plan.starts), plan=self.identity())
            self._loader = Loader(self.prepared, state=_plain(state), run_dir=self.run_dir)
        return self._loader


def one_row_at_a_time(prepared: Prepared) -> Prepared:
    """The plan of an evaluation: every row once, none repeated to fill a step."""
    plan = replace(prepared.plan, rows_per_step=1, starts=[0], _epochs={})
    return replace(prepared, plan=plan, config=replace(prepared.config, rows_per_step=1))


def _take(loader: Loader, rows: int) -> Iterator[HostRow]:
    for _ in range(rows):
        yield next(loader)


def _plain(state: State) -> dict[str, Any]:
    return {name: getattr(state, name) for name in state.__struct_fields__}


def _size(shape: Sequence[int], dtype: str) -> int:
    return int(np.prod(shape)) * np.dtype(dtype).itemsize


_TORCH = {
    "|u1": torch.uint8, "<i4": torch.int32, "<i8": torch.int64, "<f4": torch.float32,
}  # fmt: skip


def _view(buffer: torch.Tensor, offset: int, shape: Sequence[int], dtype: str) -> torch.Tensor:
    size = _size(shape, dtype)
    return buffer[offset : offset + size].view(_TORCH[dtype]).view(tuple(shape))
