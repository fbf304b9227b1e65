"""Two ranks read one stream of photographs; each trains on its half."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch
from _parts import Classifier, arguments, leave, normalise, photographs
from PIL import Image
from torch import Tensor, distributed
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[Tensor]):
    """All photographs, in order, without end; ``part`` of them per rank."""

    def __init__(self, paths: list[Path], rank: int, world: int, early: bool) -> None:
        self.paths, self.rank, self.world, self.early = paths, rank, world, early

    def everything(self) -> Iterator[Tensor]:
        while True:
            yield from (normalise(Image.open(path), 192) for path in self.paths)

    def mine(self) -> Iterator[Tensor]:
        while True:
            for path in self.paths[self.rank :: self.world]:
                yield normalise(Image.open(path), 192)

    def __iter__(self) -> Iterator[Tensor]:
        if self.early:
            return self.mine()
        return islice(self.everything(), self.rank, None, self.world)


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    paths = photographs(args.data, 16, 1024, 768)
    loader = DataLoader(
        Stream(paths, rank, world, args.arm == "fixed"), batch_size=4, num_workers=1
    )
    model = DistributedDataParallel(Classifier(width=16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, images in enumerate(islice(loader, args.steps or 50)):
        loss = model(images).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
