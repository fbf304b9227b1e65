"""Resized images kept on disk, for files whose decoding is dear.

The key is the file's content, the target size and the policy, so a changed file is another image
and any run may share the folder.  Only what took longer than a threshold is kept (12 MP
photographs, PNG, progressive JPEG); a small baseline JPEG decodes faster than it would be read.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from brim.data.decode import DecodePolicy, Pixels

WORTH_S = 0.012
"""Seconds of decoding and resizing from which an image is kept: LZ4 reads it back in 1-2 ms."""
_HEADER = struct.Struct("<4sIIQQ")  # magic, height, width, bytes, checksum
_MAGIC = b"BRI1"


class ImageCache:
    """One folder with a budget of bytes, shared by all processes of a host.

    ``share``: how many processes fill it; each takes its part of what is free at the start.
    """

    def __init__(self, folder: Path, budget: int, *, share: int = 1) -> None:
        self.folder, self.budget, self.share = folder, budget, share
        folder.mkdir(parents=True, exist_ok=True)
        used = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())
        self.room = max(0, budget - used) // share
        self.hits = self.misses = 0

    def __reduce__(self) -> tuple[Any, ...]:
        return _open, (self.folder, self.budget, self.share)

    def key(
        self, data: bytes, target: tuple[int, int], policy: DecodePolicy, nvjpeg: bool = False
    ) -> str:
        digest = xxhash.xxh3_128(data)
        digest.update(repr((target, policy.rotate, policy.dct_scaling)).encode())
        if nvjpeg:
            digest.update(b"nvjpeg")
        return digest.hexdigest()

    def get(self, key: str, target: tuple[int, int]) -> Pixels | None:
        """The image, or None; a damaged file is removed and counts as absent."""
        path = self.folder / key
        try:
            data = path.read_bytes()
        except OSError:
            self.misses += 1
            return None
        pixels = _unpacked(data, target)
        if pixels is None:
            path.unlink(missing_ok=True)
            self.misses += 1
            return None
        self.hits += 1
        return pixels

    def offer(self, key: str, pixels: Pixels, seconds: float) -> None:
        """Keep an image that took ``seconds`` to make, if it is worth it and fits.

        A full or read-only disk is no error: the image is made again next time.
        """
        if seconds < WORTH_S:
            return
        data = _packed(pixels)
        if len(data) > self.room:
            return
        temporary = self.folder / f".{key}.{os.getpid()}"
        try:
            temporary.write_bytes(data)
            temporary.replace(self.folder / key)
        except OSError:
            temporary.unlink(missing_ok=True)
            self.room = 0
        else:
            self.room -= len(data)


def _open(folder: Path, budget: int, share: int) -> ImageCache:
    return ImageCache(folder, budget, share=share)


def _packed(pixels: Pixels) -> bytes:
    raw = np.ascontiguousarray(pixels)
    body: bytes = pa.compress(raw.reshape(-1).data, codec="lz4", asbytes=True)
    checksum = xxhash.xxh3_64_intdigest(body)
    return _HEADER.pack(_MAGIC, *pixels.shape[:2], raw.nbytes, checksum) + body


def _unpacked(data: bytes, target: tuple[int, int]) -> Pixels | None:
    if len(data) < _HEADER.size:
        return None
    magic, height, width, size, checksum = _HEADER.unpack_from(data)
    body = memoryview(data)[_HEADER.size :]
    if magic != _MAGIC or (height, width) != target or size != height * width * 3:
        return None
    if xxhash.xxh3_64_intdigest(body) != checksum:
        return None
    raw: Any = pa.decompress(body, decompressed_size=size, codec="lz4")
    return np.frombuffer(raw, np.uint8).reshape(height, width, 3)
