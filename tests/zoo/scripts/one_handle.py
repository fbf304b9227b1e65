"""Volumes in one container file that its library lets only one process read at a time."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

import numpy as np
import torch
from _parts import arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BYTES = 64 * 1024


class Container(Dataset[Tensor]):
    """Reads go through one lock, as in a build without concurrency; the disk seeks for each."""

    def __init__(self, path: Path, length: int, seek_s: float) -> None:
        self.path, self.length, self.seek_s = path, length, seek_s
        self.lock = multiprocessing.Lock()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        with self.lock, self.path.open("rb", buffering=0) as file:
            file.seek(index % 64 * BYTES)
            time.sleep(self.seek_s)
            raw = file.read(BYTES)
        return torch.from_numpy(np.frombuffer(raw, dtype=np.float32).reshape(64, 256).copy())


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    path = args.data / "volumes.bin"
    if not path.exists():
        path.write_bytes(np.random.default_rng(0).standard_normal(16 * BYTES).astype("f4").data)
    steps = args.steps or 60
    volumes = Container(path, steps * 8, 0.02 if args.arm == "faulty" else 0.0)
    loader = DataLoader(volumes, batch_size=8, num_workers=4, shuffle=True)
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
