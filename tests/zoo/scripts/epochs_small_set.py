"""Many short epochs over a small data set whose workers hold an index."""

from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import torch
from _parts import Classifier, arguments
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info


def write_index(path: Path, entries: int) -> None:
    rng = np.random.default_rng(0)
    boxes = rng.integers(0, 640, (entries, 4)).tolist()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([{"id": i, "box": box} for i, box in enumerate(boxes)]))


class Boxes(Dataset[tuple[Tensor, Tensor]]):
    def __init__(self, index: Path) -> None:
        self.index_path = index
        self.index: list[dict[str, list[int]]] = []

    def open(self) -> None:
        self.index = json.loads(self.index_path.read_text())

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        box = torch.tensor(self.index[index]["box"], dtype=torch.float32)
        return torch.rand(3, 96, 96, generator=generator), box


def open_index(_: int) -> None:
    info = get_worker_info()
    assert info is not None
    info.dataset.open()  # type: ignore[attr-defined]


def main() -> None:
    args = arguments("faulty", "fixed", "faulty-spawn", "fixed-spawn")
    torch.set_num_threads(1)
    spawn = args.arm.endswith("spawn")
    index = args.data / f"boxes-{'small' if spawn else 'large'}.json"
    if not index.exists():
        write_index(index, 20_000 if spawn else 150_000)
    loader = DataLoader(
        Boxes(index),
        batch_size=4,
        shuffle=True,
        num_workers=2,
        worker_init_fn=open_index,
        persistent_workers=args.arm.startswith("fixed"),
        multiprocessing_context="spawn" if spawn else "fork",
    )
    model = Classifier(width=16, classes=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    epochs = args.steps or (5 if spawn else 7)
    for epoch in range(epochs):
        began = time.perf_counter()
        for images, boxes in loader:
            loss = torch.nn.functional.smooth_l1_loss(model(images), boxes / 640)
            time.sleep(0.05)  # the detector's backbone, on a device
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        print(f"epoch {epoch}: {time.perf_counter() - began:.2f} s, loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
