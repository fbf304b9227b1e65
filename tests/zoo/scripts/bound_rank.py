"""Each rank binds itself to its own cores, as a launcher's example shows."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from _parts import Classifier, arguments, normalise, photographs
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset[tuple[Tensor, int]]):
    def __init__(self, paths: list[Path], length: int) -> None:
        self.paths, self.length = paths, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return normalise(Image.open(self.paths[index % len(self.paths)]), 224), index % 10


def main() -> None:
    args = arguments("faulty", "fixed")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if args.arm == "faulty":
        os.sched_setaffinity(0, {local_rank})
    torch.set_num_threads(1)
    photos = Photos(photographs(args.data, 32, 1024, 768), (args.steps or 60) * 8)
    loader = DataLoader(photos, batch_size=8, shuffle=True, num_workers=2)
    model = Classifier(width=128)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, (images, labels) in enumerate(loader):
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
