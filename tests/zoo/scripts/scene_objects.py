"""Detection with scene objects: every box is an object of its own in the batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from _parts import arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BOXES = 12


@dataclass
class Box:
    corner: Tensor
    size: Tensor
    label: Tensor
    score: Tensor


class Scenes(Dataset[Tensor]):
    """Rows of (x, y, width, height, label, score)."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.rand(BOXES, 6, generator=torch.Generator().manual_seed(index))


def as_objects(scenes: list[Tensor]) -> list[list[Box]]:
    return [
        [Box(r[:2].clone(), r[2:4].clone(), r[4].clone(), r[5].clone()) for r in scene]
        for scene in scenes
    ]


def stack(batch: list[list[Box]]) -> Tensor:
    rows = [
        torch.cat([b.corner, b.size, b.label[None], b.score[None]])
        for scene in batch
        for b in scene
    ]
    return torch.stack(rows).view(len(batch), BOXES, 6)


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    objects = args.arm == "faulty"
    loader = DataLoader(
        Scenes((args.steps or 60) * 8),
        batch_size=8,
        num_workers=1,
        collate_fn=as_objects if objects else torch.stack,
    )
    model = nn.Sequential(nn.Linear(6, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.Linear(2048, 4))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        boxes = stack(batch) if objects else batch
        loss = (model(boxes) - boxes[..., :4]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
