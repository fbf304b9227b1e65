"""Tracking: the data set carries a long list of annotations to spawned workers."""

from __future__ import annotations

import torch
from _parts import Classifier, arguments
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Tracks(Dataset[tuple[Tensor, int]]):
    def __init__(self, frames: int) -> None:
        self.tracks = [(i, f"video-{i % 997}", {"x": i % 640, "y": i % 480}) for i in range(frames)]

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        number, _, place = self.tracks[index * 1000]
        generator = torch.Generator().manual_seed(number + place["x"])
        return torch.rand(3, 128, 128, generator=generator), index % 10


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    tracks = Tracks(250_000)
    loader = DataLoader(
        tracks,
        batch_size=8,
        num_workers=1,
        multiprocessing_context="spawn",
        persistent_workers=args.arm == "fixed",
    )
    model = Classifier(width=128)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for epoch in range(args.steps or 5):
        total = 0.0
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(f"epoch {epoch} mean loss {total / len(loader):.3f}")


if __name__ == "__main__":
    main()
