"""Audio-like features, whitened with NumPy in the workers."""

from __future__ import annotations

import numpy as np
import torch
from _parts import arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Features(Dataset[Tensor]):
    def __init__(self, length: int) -> None:
        self.length = length
        basis = np.random.default_rng(0).standard_normal((256, 256)).astype(np.float32)
        self.basis = basis / 16

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        frames = np.random.default_rng(index).standard_normal((256, 256)).astype(np.float32)
        for _ in range(40):
            frames = np.tanh(frames @ self.basis)
            frames -= frames.mean(axis=0)
        return torch.from_numpy(frames.astype(np.float32))


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    loader = DataLoader(Features((args.steps or 60) * 4), batch_size=4, num_workers=2)
    model = nn.GRU(256, 64, batch_first=True)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step, frames in enumerate(loader):
        outputs, _ = model(frames[:, :32])
        loss = outputs.square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
