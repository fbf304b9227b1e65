"""Copies of a rank's tensors in shared host memory, made beside the step that is running.

The copies run on a stream of their own; the optimizer's next update waits for them on the device,
so the host never does, and the forward and backward pass hide them.  The memory is a file without
a name (memfd): the process that writes checkpoints maps the same pages, whatever /dev/shm allows.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import torch

from brim.errors import BrimError
from brim.train.parallel.shards import local
from brim.train.saving.layout import File, Piece

_SMALL = 1 << 12
"""Bytes up to which a tensor is copied in the order of the computation: some of them are replaced,
not updated, and their memory would be used again under the copy."""
_ALIGN = 64


class Staging:
    """Room for ``size`` bytes, pinned for ``device`` when that is a GPU.

    The pages are made in a thread that starts here; 50 GB take some ten seconds.
    """

    def __init__(self, size: int, device: torch.device) -> None:
        self.size = max(size, mmap.PAGESIZE)
        self.fd = os.memfd_create("brim-checkpoint")
        os.ftruncate(self.fd, self.size)
        self._map = mmap.mmap(self.fd, self.size)
        self._bytes = torch.frombuffer(self._map, dtype=torch.uint8)
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._event: torch.cuda.Event | None = None
        self._pinned = False
        self._why = ""
        self._made = threading.Thread(target=self._make, daemon=True)
        self._made.start()

    def _make(self) -> None:
        try:
            os.posix_fallocate(self.fd, 0, self.size)  # touching pages in the copy would be slower
        except OSError as error:
            self._why = str(error)
            return
        if self._stream is not None:
            address = self._bytes.data_ptr()
            # refused (no locked memory allowed, say): copies are slower, and right
            self._pinned = int(torch.cuda.cudart().cudaHostRegister(address, self.size, 0)) == 0

    def copy(self, files: Sequence[File], tensors: Mapping[str, torch.Tensor]) -> list[int]:
        """Start copying the pieces of ``files``; returns where each file's data begins.

        Raises :class:`BrimError` when the host has no memory for them.
        """
        self._made.join()
        if self._why:
            raise BrimError(
                f"a checkpoint needs {self.size / 1e9:.1f} GB of host memory: {self._why}",
                hint="raise the limits on memory and on file sizes, or use more ranks",
            )
        starts, position = [], 0
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())
        for file in files:
            starts.append(position)
            for piece in file.pieces:
                self._copy(piece, position, local(tensors[piece.name]))
            position += aligned(file.nbytes)
        if self._stream is not None:
            self._stream.wait_stream(torch.cuda.current_stream())  # the small ones
            self._event = torch.cuda.Event()
            self._event.record(self._stream)
        return starts

    def _copy(self, piece: Piece, position: int, source: torch.Tensor) -> None:
        assert tuple(source.shape) == piece.sizes, f"{piece.name} is not sharded as planned"
        if not piece.nbytes:
            return
        start = position + piece.start
        target = self._bytes[start : start + piece.nbytes].view(piece.dtype).view(piece.sizes)
        if self._stream is None or not source.is_cuda or piece.nbytes <= _SMALL:
            target.copy_(source.detach(), non_blocking=True)
            return
        with torch.cuda.stream(self._stream):
            target.copy_(source.detach(), non_blocking=True)

    def hold_update(self) -> None:
        """What the device does from here on waits for the copies; the host does not."""
        if self._event is not None:
            torch.cuda.current_stream().wait_event(self._event)

    def ready(self) -> bool:
        return self._event is None or bool(self._event.query())

    def wait(self) -> None:
        if self._event is not None:
            self._event.synchronize()

    def close(self) -> None:
        self._made.join()
        self.wait()
        if self._pinned:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
        del self._bytes, self._map  # in this order: the tensor looks into the mapping
        os.close(self.fd)


def aligned(nbytes: int) -> int:
    """Space that a file's data takes in the staging memory."""
    return -(-nbytes // _ALIGN) * _ALIGN


def rounds(files: Sequence[File], room: int) -> list[list[File]]:
    """``files`` in groups that fit into ``room`` bytes; a file larger than that has its own."""
    groups: list[list[File]] = [[]]
    filled = 0
    for file in files:
        if groups[-1] and filled + aligned(file.nbytes) > room:
            groups.append([])
            filled = 0
        groups[-1].append(file)
        filled += aligned(file.nbytes)
    return groups


def free_memory() -> int:
    """Bytes that this process may still take: of the host, and of its control group.

    Pages of files that nobody uses count as free, as they do in the kernel's own figure.
    """
    free = int(psutil.virtual_memory().available)
    group = Path("/sys/fs/cgroup")
    try:
        limit = int((group / "memory.max").read_text())
        used = int((group / "memory.current").read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        idle = next(int(line.split()[1]) for line in lines if line.startswith("inactive_file "))
    except (OSError, ValueError, StopIteration):
        return free  # no control group of version 2, or "max"
    return min(free, limit - used + idle)
