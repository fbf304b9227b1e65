"""Batches of many high-resolution tiles, as float or as bytes."""

from __future__ import annotations

import torch
from _parts import Classifier, arguments
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Tiles(Dataset[Tensor]):
    """Tiles lie in memory as bytes."""

    def __init__(self, length: int, as_float: bool) -> None:
        self.length, self.as_float = length, as_float
        self.tiles = torch.randint(0, 255, (16, 3, 512, 512), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        tile = self.tiles[index % len(self.tiles)]
        return tile.float() / 127.5 - 1 if self.as_float else tile


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    steps, as_float = args.steps or 80, args.arm == "faulty"
    loader = DataLoader(Tiles(steps * 32, as_float), batch_size=32, num_workers=1)
    model = Classifier(width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, tiles in enumerate(loader):
        thumbnails = tiles[:, :, ::8, ::8].float()
        loss = model(thumbnails if as_float else thumbnails / 127.5 - 1).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
