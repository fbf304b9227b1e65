"""Train a small detector; each worker warps feature maps with matrix products."""

from __future__ import annotations

import torch
from _parts import Classifier, arguments
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

THREADS = {"faulty": 16, "fixed": 1, "ahead": 16}


class Warped(Dataset[tuple[Tensor, int]]):
    """Random scenes under a chain of linear warps."""

    def __init__(self, length: int, size: int, hops: int) -> None:
        self.length, self.size, self.hops = length, size, hops
        generator = torch.Generator().manual_seed(0)
        self.warp = torch.randn(size, size, generator=generator) / size**0.5

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed(index)
        scene = torch.rand(self.size, self.size, generator=generator)
        for _ in range(self.hops):
            scene = (scene @ self.warp).tanh().add(0.01).clamp(-1, 1)
        image = torch.nn.functional.interpolate(scene[None, None], (128, 128))[0]
        return image.expand(3, -1, -1).contiguous(), index % 10


def main() -> None:
    args = arguments("faulty", "fixed", "ahead")
    torch.set_num_threads(1)

    def start_worker(_: int) -> None:
        torch.set_num_threads(THREADS[args.arm])

    light = args.arm == "ahead"
    steps = args.steps or 60
    scenes = Warped(steps * 4, 200, 4 if light else 120)
    loader = DataLoader(scenes, batch_size=4, num_workers=2, worker_init_fn=start_worker)
    model = Classifier(width=64 if light else 24)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for step, (images, labels) in enumerate(loader):
        if light:
            images = images.repeat(8, 1, 1, 1)
            labels = labels.repeat(8)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
