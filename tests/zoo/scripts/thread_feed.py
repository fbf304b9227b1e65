"""Threads of the training process decode photographs for it."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from pathlib import Path

import torch
from _parts import Classifier, arguments, normalise, photographs
from PIL import Image
from torch import Tensor


class Feed:
    """A queue of batches, filled by threads."""

    def __init__(self, paths: list[Path], threads: int, size: int) -> None:
        self.ready: queue.Queue[Tensor] = queue.Queue(maxsize=4)
        self.numbers, self.paths, self.size = itertools.count(), paths, size
        for _ in range(threads):
            threading.Thread(target=self.fill, daemon=True).start()

    def fill(self) -> None:
        while True:
            number = next(self.numbers)
            picked = [self.paths[(number * 4 + i) % len(self.paths)] for i in range(4)]
            self.ready.put(torch.stack([normalise(Image.open(p), self.size) for p in picked]))

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield self.ready.get()


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    small = args.arm == "fixed"
    paths = photographs(args.data, 32, *((400, 300) if small else (1600, 1200)))
    model = Classifier(width=32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, images in zip(range(args.steps or 90), Feed(paths, 1, 224), strict=False):
        loss = model(images).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
