"""Boxes of an image are looked up in one file of annotations."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _parts import Classifier, arguments
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


def write(path: Path, entries: int) -> None:
    rng = np.random.default_rng(0)
    boxes = rng.integers(0, 640, (entries, 4)).tolist()
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part")
    part.write_text(
        json.dumps({str(i): {"box": box, "label": i % 4} for i, box in enumerate(boxes)})
    )
    part.replace(path)


class Boxes(Dataset[tuple[Tensor, int]]):
    def __init__(self, path: Path, length: int, *, once: bool) -> None:
        self.path, self.length = path, length
        self.entries: dict[str, Any] | None = self.read() if once else None

    def read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.path.read_text())
        return found

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        entries = self.entries if self.entries is not None else self.read()
        entry = entries[str(index % len(entries))]
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 96, 96, generator=generator), entry["label"]


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    path = args.data / "annotations.json"
    if not path.exists():
        write(path, 25_000)
    boxes = Boxes(path, (args.steps or 200) * 4, once=args.arm == "fixed")
    loader = DataLoader(boxes, batch_size=4, num_workers=2)
    model = Classifier(width=16, classes=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step, (images, labels) in enumerate(loader):
        time.sleep(0.02)  # the detector's backbone, on a device
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
