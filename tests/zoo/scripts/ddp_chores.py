"""Two ranks; one of them has more to do than to train, or a worse machine."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from _parts import VOCABULARY, Decoder, arguments, leave
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[Tensor]):
    """Tokens from a file; ``seek_s`` is what the rank's disk takes for a row."""

    def __init__(self, rows: int, seek_s: float) -> None:
        self.rows, self.seek_s = rows, seek_s

    def __iter__(self) -> Iterator[Tensor]:
        for row in range(self.rows):
            with open(os.devnull, "rb", buffering=0) as file:
                time.sleep(self.seek_s)
                file.read(64)
            yield torch.randint(1, VOCABULARY, (96,), generator=torch.Generator().manual_seed(row))


class Slow(nn.Module):
    """A layer on a device that runs at a fraction of its clock."""

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(0.05)
        return x


def write(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with path.open("wb") as file:
        for _ in range(3):  # three copies: latest, best, and one for the archive
            torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        os.fsync(file.fileno())


def main() -> None:
    args = arguments("writes", "disk", "clock", "fixed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, steps = distributed.get_rank(), args.steps or 70
    torch.manual_seed(0)
    net = Decoder(hidden=256 if args.arm == "writes" else 96, layers=3)
    if args.arm == "clock" and rank == 1:
        net.norm = nn.Sequential(net.norm, Slow())
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    rows = Stream(steps * 4, 0.02 if args.arm == "disk" and rank == 1 else 0.0)
    for step, ids in enumerate(DataLoader(rows, batch_size=4, num_workers=1)):
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.arm == "writes" and rank == 0 and step % 4 == 3:
            write(args.data / "latest.pt", net, optimizer)
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
