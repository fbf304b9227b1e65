"""How fast a folder's own files are read when the page cache does not help.

Nothing is written where there is enough to read: the folder may be a data set on a full disk.
"""

from __future__ import annotations

import contextlib
import errno
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from brim.errors import InputError
from brim.hardware.attainable import StorageFigures

MOST_BYTES = 256 << 20
ENOUGH_BYTES = 16 << 20
MOST_FILES = 2000
_READERS = 8
_CHUNK = 1 << 20
_SECONDS = 5.0


def measure(folder: Path) -> StorageFigures:
    """Read up to 256 MiB of the folder's files, cold, for at most some seconds a figure.

    Raises :class:`InputError` when there is nothing to read and no room to write.
    """
    with _files(folder) as files:
        cached = not _can_evict(files.pop() if len(files) > 1 else files[0])
        half = max(1, len(files) // 2)
        one, bytes_one = _read(files[:half], readers=1)
        eight = None
        if len(files) >= 2 * _READERS:
            eight, _ = _read(files[half:], readers=_READERS)
        latencies = _first_bytes(files)
        return StorageFigures(
            folder=str(folder.resolve()),
            files=len(files),
            bytes=bytes_one,
            read_bytes_s=one,
            read_bytes_s_8=eight,
            first_byte_ms=statistics.median(latencies) * 1e3,
            cached=cached,
            measured_at=time.time(),
        )


@contextlib.contextmanager
def _files(folder: Path) -> Iterator[list[Path]]:
    """Files to read: the folder's own, or some of our own that go away again."""
    found = list(_existing(folder))
    if sum(size for _, size in found) >= ENOUGH_BYTES:
        yield [path for path, _ in found]
        return
    try:
        with tempfile.TemporaryDirectory(prefix=".brim-storage-", dir=folder) as own:
            yield _written(Path(own))
    except OSError as error:
        raise InputError(
            f"{folder}: holds less than {ENOUGH_BYTES >> 20} MiB to read and cannot be written "
            f"({error.strerror})"
        ) from None


def _existing(folder: Path) -> Iterator[tuple[Path, int]]:
    """Plain files below the folder until there are enough; links are not followed."""
    total = count = 0
    for base, _, names in os.walk(folder):
        for name in sorted(names):
            path = Path(base) / name
            if not path.is_file() or path.is_symlink():
                continue
            yield path, path.stat().st_size
            total += path.stat().st_size
            count += 1
            if total >= MOST_BYTES or count >= MOST_FILES:
                return


def _written(folder: Path) -> list[Path]:
    """64 files of 1 MiB that do not compress."""
    files = []
    for number in range(64):
        path = folder / f"{number}.bin"
        with path.open("wb") as f:
            f.write(os.urandom(_CHUNK))
            f.flush()
            os.fsync(f.fileno())  # dirty pages cannot be dropped from the cache
        files.append(path)
    return files


def _read(files: list[Path], *, readers: int) -> tuple[float, int]:
    """(bytes/s, bytes)."""
    for path in files:
        _evict(path)
    end = time.monotonic() + _SECONDS
    began = time.monotonic()
    with ThreadPoolExecutor(readers) as pool:
        total = sum(pool.map(lambda path: _whole(path, end), files))
    return total / max(time.monotonic() - began, 1e-9), total


def _whole(path: Path, end: float) -> int:
    total = 0
    with contextlib.suppress(OSError), path.open("rb", buffering=0) as f:
        while time.monotonic() < end and (chunk := f.read(_CHUNK)):
            total += len(chunk)
    return total


def _first_bytes(files: list[Path]) -> list[float]:
    """Seconds from open to the first 4 KiB, file by file."""
    some = files[:: max(1, len(files) // 100)]
    for path in some:
        _evict(path)
    end = time.monotonic() + _SECONDS
    times = []
    for path in some:
        began = time.perf_counter()
        with contextlib.suppress(OSError), path.open("rb", buffering=0) as f:
            f.read(4096)
            times.append(time.perf_counter() - began)
        if time.monotonic() > end:
            break
    return times or [0.0]


def _evict(path: Path) -> None:
    """Ask the kernel to drop the file's clean pages."""
    with contextlib.suppress(OSError):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def _can_evict(probe: Path) -> bool:
    """Whether pages really go away here (tmpfs and some network file systems keep them).

    A read with RWF_NOWAIT (Linux 4.14) fails with EAGAIN when it would have to wait for storage.
    It starts the reading, so it is made on a file that no figure needs.
    """
    _evict(probe)
    try:
        fd = os.open(probe, os.O_RDONLY)
        try:
            os.preadv(fd, [bytearray(1)], 0, os.RWF_NOWAIT)
        finally:
            os.close(fd)
    except OSError as error:
        return error.errno == errno.EAGAIN
    except AttributeError:
        return False  # not to be told on this platform
    return False
