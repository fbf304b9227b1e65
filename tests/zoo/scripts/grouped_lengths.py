"""A sampler that groups by length, over samples that carry an image."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from _parts import Decoder, arguments, caption, encode, normalise, photographs
from PIL import Image
from torch.utils.data import DataLoader, Dataset, Sampler


class Turns(Dataset[dict[str, Any]]):
    def __init__(self, paths: list[Path], length: int, cached: bool = False) -> None:
        self.paths, self.length, self.cached = paths, length, cached
        self.images: list[torch.Tensor] = []
        self.lengths = [100 + index % 60 for index in range(length)]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.cached and not self.images:
            self.images = [self.image(i) for i in range(self.length)]
        image = self.images[index] if self.cached else self.image(index)
        return {"image": image, "ids": encode(caption(index, self.lengths[index]))}

    def image(self, index: int) -> torch.Tensor:
        return normalise(Image.open(self.paths[index % len(self.paths)]), 64)


class ByLength(Sampler[int]):
    def __init__(self, turns: Turns, stored: bool) -> None:
        self.turns, self.stored = turns, stored

    def __len__(self) -> int:
        return len(self.turns)

    def __iter__(self) -> Iterator[int]:
        if self.stored:
            lengths = self.turns.lengths
        else:
            lengths = [len(self.turns[i]["ids"]) for i in range(len(self.turns))]
        return iter(sorted(range(len(lengths)), key=lengths.__getitem__))


def collate(turns: list[dict[str, Any]]) -> tuple[torch.Tensor, torch.Tensor]:
    longest = max(len(turn["ids"]) for turn in turns)
    ids = torch.tensor([turn["ids"] + [0] * (longest - len(turn["ids"])) for turn in turns])
    return torch.stack([turn["image"] for turn in turns]), ids


def main() -> None:
    args = arguments("faulty", "fixed", "cached")
    torch.set_num_threads(1)
    steps = args.steps or 40
    turns = Turns(photographs(args.data, 24, 320, 240), 3000, args.arm == "cached")
    loader = DataLoader(
        turns,
        batch_size=16,
        sampler=ByLength(turns, stored=args.arm != "faulty"),
        collate_fn=collate,
        num_workers=1,
    )
    model = Decoder(hidden=96, layers=4)
    vision = torch.nn.Conv2d(3, 8, 16, 16)
    optimizer = torch.optim.AdamW([*model.parameters(), *vision.parameters()], lr=1e-3)
    for step, (images, ids) in enumerate(islice(loader, steps)):
        labels = ids.masked_fill(ids == 0, -100)
        loss = model(ids, labels) + 1e-3 * vision(images).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
