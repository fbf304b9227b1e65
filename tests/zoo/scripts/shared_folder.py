"""Train on arrays that lie in a folder which several machines share."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path

import numpy as np
import torch
from _parts import arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WORKERS = {"faulty": 2, "more": 4, "fixed": 2}
BYTES_PER_SECOND = 20e6
CHUNK = 256 * 1024


class Share:
    """Reads files at the bandwidth of the share, which all clients divide among them."""

    def __init__(self, ledger: Path) -> None:
        self.ledger = ledger
        ledger.write_text("0")

    def reserve(self, size: int) -> float:
        """The moment at which ``size`` more bytes have come over the wire."""
        with self.ledger.open("r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            free = max(float(file.read() or 0), time.time()) + size / BYTES_PER_SECOND
            file.seek(0)
            file.write(f"{free:.6f}")
        return free

    def read(self, path: Path) -> bytes:
        parts = []
        with path.open("rb") as file:
            while part := file.read(CHUNK):
                time.sleep(max(0.0, self.reserve(len(part)) - time.time()))
                parts.append(part)
        return b"".join(parts)


class Arrays(Dataset[Tensor]):
    def __init__(self, paths: list[Path], length: int, share: Share | None) -> None:
        self.paths, self.length, self.share = paths, length, share

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        path = self.paths[index % len(self.paths)]
        raw = self.share.read(path) if self.share else path.read_bytes()
        return torch.from_numpy(np.frombuffer(raw, dtype=np.float16).reshape(1024, 1024).copy())


def files(folder: Path, count: int) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:03d}.bin" for i in range(count)]
    for i, path in enumerate(paths):
        if not path.exists():
            array = np.random.default_rng(i).standard_normal((1024, 1024)).astype(np.float16)
            path.write_bytes(array.tobytes())
    return paths


def main() -> None:
    args = arguments("faulty", "more", "fixed")
    torch.set_num_threads(1)
    steps = args.steps or (150 if args.arm == "fixed" else 40)
    share = None if args.arm == "fixed" else Share(args.data / "ledger")
    arrays = Arrays(files(args.data / "arrays", 32), steps * 4, share)
    loader = DataLoader(arrays, batch_size=4, shuffle=True, num_workers=WORKERS[args.arm])
    model = nn.Sequential(nn.Linear(1024, 128), nn.GELU(), nn.Linear(128, 64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        optimizer.zero_grad()
        loss = model(batch.float()).square().mean()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"{step:4d}  {loss.item():.5f}")


if __name__ == "__main__":
    main()
