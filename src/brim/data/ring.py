"""Shared memory between the loader process and the trainer: slots of equal size, one row each.

The memory is an anonymous file (memfd), so it needs no room in ``/dev/shm`` (64 MB in a default
container), has no name to leak, and is gone with the last process that maps it.  Its first page is
the black box: which sample each loader thread is at, readable after the process has died.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.data.maker import Guard
from brim.data.quarantine import BadSample

MAX_THREADS = 128
_ALIGN = 1 << 21  # a huge page
Layout = list[tuple[str, int, tuple[int, ...], str]]
"""(name, offset in the slot, shape, dtype) of each array of a row."""


class Ring:
    """``slots`` × ``slot_bytes`` of shared memory behind the descriptor ``fd``."""

    def __init__(self, fd: int, slots: int, slot_bytes: int) -> None:
        self.fd, self.slots = fd, slots
        self.slot_bytes = -(-slot_bytes // _ALIGN) * _ALIGN
        self._map = mmap.mmap(fd, _ALIGN + slots * self.slot_bytes)
        self._bytes = np.frombuffer(self._map, np.uint8)
        # (sample + 1, start in monotonic nanoseconds) per thread; 0: idle
        self.box = self._bytes[: MAX_THREADS * 16].view(np.int64).reshape(MAX_THREADS, 2)

    @classmethod
    def create(cls, slots: int, slot_bytes: int) -> Ring:
        """A new ring; pages take memory only when a slot is first used."""
        fd = os.memfd_create("brim-rows", os.MFD_CLOEXEC)
        aligned = -(-slot_bytes // _ALIGN) * _ALIGN
        os.ftruncate(fd, _ALIGN + slots * aligned)
        return cls(fd, slots, slot_bytes)

    def slot(self, number: int) -> NDArray[np.uint8]:
        """The bytes of a slot."""
        start = _ALIGN + number * self.slot_bytes
        return self._bytes[start : start + self.slot_bytes]

    def fault_in(self, number: int) -> None:
        """Make the kernel find the slot's pages now, not while a row waits for them."""
        self.slot(number)[:: mmap.PAGESIZE] = 0

    def arrays(self, number: int, layout: Layout) -> dict[str, NDArray[Any]]:
        """The arrays of the row in a slot, sharing its memory."""
        slot = self.slot(number)
        found = {}
        for name, offset, shape, dtype in layout:
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            found[name] = slot[offset : offset + size].view(dtype).reshape(shape)
        return found

    def close(self) -> None:
        """Close the descriptor; the memory lives on while arrays refer to it."""
        if self.fd >= 0:
            os.close(self.fd)
        self.fd = -1


class SlotWriter:
    """An allocator (``brim.data.rows.Allocate``) that places arrays in a slot, 64-byte aligned."""

    def __init__(self, slot: NDArray[np.uint8]) -> None:
        self._slot = slot
        self._at = 0
        self.layout: Layout = []

    def __call__(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
        kind = np.dtype(dtype)
        size = int(np.prod(shape)) * kind.itemsize
        start, end = self._at, self._at + size
        assert end <= len(self._slot), f"{name} does not fit its slot"
        self.layout.append((name, start, shape, kind.str))
        self._at = -(-end // 64) * 64
        return self._slot[start:end].view(kind).reshape(shape)


class BlackBox(Guard):
    """Notes in the ring what its thread is at.

    ``avoid``: samples that killed the process before, with the reason, refused here.
    ``suspects``: samples of which one killed it; they are read one at a time, so that a second
    death convicts exactly one.
    """

    def __init__(
        self, line: NDArray[np.int64], avoid: dict[int, str], suspects: frozenset[int], lock: Any
    ) -> None:
        self._line, self._avoid, self._suspects, self._lock = line, avoid, suspects, lock

    @contextmanager
    def watching(self, sample: int) -> Iterator[None]:
        if sample in self._avoid:
            raise BadSample("sample.deadly", self._avoid[sample])
        suspect = sample in self._suspects
        if suspect:
            self._lock.acquire()
        self._line[1] = time.monotonic_ns()
        self._line[0] = sample + 1
        try:
            yield
        finally:
            self._line[0] = 0
            if suspect:
                self._lock.release()
