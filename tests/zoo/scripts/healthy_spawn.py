"""Long epochs with spawned workers that stay alive."""

from __future__ import annotations

import torch
from _parts import Classifier, arguments
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Scans(Dataset[tuple[Tensor, int]]):
    def __len__(self) -> int:
        return 640

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 160, 160, generator=generator), index % 10


def main() -> None:
    args = arguments("persistent")
    torch.set_num_threads(1)
    loader = DataLoader(
        Scans(),
        batch_size=16,
        shuffle=True,
        num_workers=2,
        multiprocessing_context="spawn",
        persistent_workers=True,
    )
    model = Classifier(width=96)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, nesterov=True)
    limit = args.steps or 80
    done = 0
    while done < limit:
        for images, labels in loader:
            loss = torch.nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            done += 1
            if done >= limit:
                break
        print(f"{done} steps, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
