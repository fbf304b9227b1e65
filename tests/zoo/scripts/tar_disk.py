"""CLIP-like training on tar shards that lie on an old disk."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from _parts import arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

BYTES_PER_SECOND = 12e6


class Disk(io.RawIOBase):
    """A file on a disk whose platter gives 12 MB a second to one reader."""

    def __init__(self, file: BinaryIO, slow: bool) -> None:
        super().__init__()
        self.file, self.slow = file, slow

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        count: int = self.file.readinto(buffer)  # type: ignore[attr-defined]
        if self.slow:
            time.sleep(count / BYTES_PER_SECOND)
        return count


def write_shards(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    shards = [folder / f"{i:02d}.tar" for i in range(count)]
    for i, shard in enumerate(shards):
        if not shard.exists():
            with tarfile.open(shard, "w") as tar:
                for j in range(32):
                    rng = np.random.default_rng(100 * i + j)
                    raw = rng.integers(0, 255, 3 * 256 * 256, dtype=np.uint8).tobytes()
                    entry = tarfile.TarInfo(f"{j:03d}.rgb")
                    entry.size = len(raw)
                    tar.addfile(entry, io.BytesIO(raw))
    return shards


class Shards(IterableDataset[Tensor]):
    def __init__(self, shards: list[Path], slow: bool) -> None:
        self.shards, self.slow = shards, slow

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        assert info is not None
        while True:
            for shard in self.shards[info.id :: info.num_workers]:
                with shard.open("rb") as raw:
                    disk = io.BufferedReader(Disk(raw, self.slow), 1 << 18)
                    with tarfile.open(fileobj=disk, mode="r|") as tar:
                        for entry in tar:
                            file = tar.extractfile(entry)
                            assert file is not None
                            pixels = np.frombuffer(file.read(), dtype=np.uint8)
                            yield torch.from_numpy(pixels.reshape(3, 256, 256).copy())


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    shards = Shards(write_shards(args.data / "shards", 4), args.arm == "faulty")
    loader = iter(DataLoader(shards, batch_size=16, num_workers=2))
    model = nn.Sequential(nn.Conv2d(3, 48, 16, 16), nn.GELU(), nn.Conv2d(48, 64, 4, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    limit = args.steps or 50
    for step in range(limit):
        images = next(loader).float() / 255
        loss = model(images).mean((2, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step}/{limit} {loss.item():.5f}")


if __name__ == "__main__":
    main()
