"""Stream photographs out of shards, split over the loader's workers."""

from __future__ import annotations

import io
import tarfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from _parts import arguments, normalise, photographs
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, get_worker_info


def write_shards(data: Path, count: int) -> list[Path]:
    """32 photographs in ``count`` tar files."""
    photos = photographs(data, 32, 1600, 1200)
    shards = [data / f"photos-{i}-of-{count}.tar" for i in range(count)]
    for i, shard in enumerate(shards):
        if not shard.exists():
            with tarfile.open(shard, "w") as tar:
                for photo in photos[i::count]:
                    tar.add(photo, arcname=photo.name)
    return shards


class Shards(IterableDataset[Tensor]):
    def __init__(self, shards: list[Path], passes: int) -> None:
        self.shards, self.passes = shards, passes

    def __iter__(self) -> Iterator[Tensor]:
        info = get_worker_info()
        mine = self.shards[info.id :: info.num_workers] if info else self.shards
        for _ in range(self.passes):
            for shard in mine:
                with tarfile.open(shard) as tar:
                    for member in tar:
                        file = tar.extractfile(member)
                        assert file is not None
                        yield normalise(Image.open(io.BytesIO(file.read())), 384)


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    shards = write_shards(args.data, 1 if args.arm == "faulty" else 8)
    steps = args.steps or 60
    loader = DataLoader(Shards(shards, passes=steps), batch_size=4, num_workers=2)
    model = torch.nn.Sequential(
        torch.nn.AdaptiveAvgPool2d(12), torch.nn.Flatten(), torch.nn.Linear(432, 10)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stream = iter(loader)
    for step in range(steps):
        images = next(stream)
        time.sleep(0.075)  # the encoder, on a device
        loss = model(images).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"[{step}/{steps}] loss={loss.item():.4f}")


if __name__ == "__main__":
    main()
