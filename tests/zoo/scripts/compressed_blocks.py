"""Samples lie in compressed blocks of 64; they are drawn one by one, or block by block."""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from _parts import Classifier, arguments, photograph
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

BLOCK, SIDE = 64, 128
BYTES = SIDE * SIDE * 3


def write(folder: Path, blocks: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03d}.z" for i in range(blocks)]
    rng = np.random.default_rng(0)
    for path in paths:
        if not path.exists():
            images = [np.asarray(photograph(rng, SIDE, SIDE)).tobytes() for _ in range(BLOCK)]
            path.write_bytes(zlib.compress(b"".join(images), 6))
    return paths


class Blocks(Dataset[Tensor]):
    """The block read last stays open."""

    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths
        self.last: tuple[int, bytes] = (-1, b"")

    def __len__(self) -> int:
        return len(self.paths) * BLOCK

    def __getitem__(self, index: int) -> Tensor:
        block, row = divmod(index, BLOCK)
        if self.last[0] != block:
            self.last = (block, zlib.decompress(self.paths[block].read_bytes()))
        pixels = np.frombuffer(self.last[1], np.uint8, BYTES, row * BYTES)
        image = torch.from_numpy(pixels.copy()).view(SIDE, SIDE, 3).permute(2, 0, 1)
        return image.float() / 255


def batches(blocks: int, count: int, *, whole: bool) -> Iterator[list[int]]:
    """Batches of eight: of one block where ``whole``, of any otherwise."""
    rng = np.random.default_rng(1)
    for _ in range(count):
        if whole:
            first = int(rng.integers(blocks)) * BLOCK
            yield (first + rng.permutation(BLOCK)[:8]).tolist()
        else:
            yield rng.integers(blocks * BLOCK, size=8).tolist()


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    paths = write(args.data / f"blocks-{BLOCK}", 16)
    order = list(batches(len(paths), args.steps or 200, whole=args.arm == "fixed"))
    loader = DataLoader(Blocks(paths), batch_sampler=order, num_workers=2)
    model = Classifier(width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, images in enumerate(loader):
        time.sleep(0.02)  # the backbone runs on a device that this host stands for
        loss = model(images).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
