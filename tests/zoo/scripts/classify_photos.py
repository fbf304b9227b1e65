"""Fine-tune a classifier on photographs: a raw loop over a map-style data set."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import torch
from _parts import arguments, photographs
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset
from tqdm import tqdm

WORKERS = {"faulty": 1, "fixed": 2, "crowded": 6, "bound": 2}
FORWARD_S = {"faulty": 0.1, "fixed": 0.1, "crowded": 0.02, "bound": 0.1}


class Photos(Dataset[tuple[Tensor, int]]):
    def __init__(self, paths: list[Path], length: int) -> None:
        self.paths, self.length = paths, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image = Image.open(self.paths[index % len(self.paths)]).convert("RGB")
        rng = np.random.default_rng(index)
        left, top = int(rng.integers(200)), int(rng.integers(200))
        image = image.crop((left, top, left + 1400, top + 1000))
        image = image.resize((448, 448), Image.Resampling.BICUBIC)
        image = image.rotate(float(rng.uniform(-8, 8)), Image.Resampling.BILINEAR)
        pixels = torch.from_numpy(np.asarray(image, dtype=np.float32) / 127.5 - 1)
        return pixels.reshape(28, 16, 28, 16, 3).permute(0, 2, 1, 3, 4).reshape(
            784, 768
        ), index % 10


def main() -> None:
    args = arguments("faulty", "fixed", "crowded", "bound")
    torch.set_num_threads(1)
    steps = args.steps or 70
    photos = Photos(photographs(args.data, 32, 1600, 1200), steps * 4)
    loader = DataLoader(
        photos, batch_size=4, shuffle=True, num_workers=WORKERS[args.arm], prefetch_factor=2
    )
    head = torch.nn.Linear(768, 10)
    optimizer = torch.optim.AdamW(head.parameters(), lr=1e-3)
    for patches, labels in tqdm(loader):
        time.sleep(FORWARD_S[args.arm])  # the backbone runs on a device that this host stands for
        loss = torch.nn.functional.cross_entropy(head(patches.mean(1)), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    print(f"last loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
