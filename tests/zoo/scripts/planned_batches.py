"""Train on batches of a token budget that a batch sampler puts together."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from _parts import Decoder, arguments, caption, encode
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

BUDGET = 1024


class Texts(Dataset[Tensor]):
    def __init__(self, lengths: np.ndarray) -> None:
        self.lengths = lengths

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(encode(caption(index, int(self.lengths[index]))))


class Budgeted(Sampler[list[int]]):
    """Each batch is filled with the texts that fit best of those that are left."""

    def __init__(self, lengths: np.ndarray, batches: int) -> None:
        self.lengths, self.batches = lengths, batches

    def __iter__(self) -> Iterator[list[int]]:
        left = set(range(len(self.lengths)))
        for _ in range(self.batches):
            room, chosen = BUDGET, []
            for index in sorted(left, key=lambda i: (-int(self.lengths[i]), i)):
                if self.lengths[index] <= room:
                    chosen.append(index)
                    room -= int(self.lengths[index])
                if room < 32:
                    break
            left.difference_update(chosen)
            yield chosen


class Planned(Sampler[list[int]]):
    """The same budget, cut once from a shuffled order."""

    def __init__(self, lengths: np.ndarray, batches: int) -> None:
        order = np.random.default_rng(0).permutation(len(lengths))
        ends = np.searchsorted(np.cumsum(lengths[order]), np.arange(1, batches + 1) * BUDGET)
        self.plan = [part.tolist() for part in np.split(order, ends)[:batches]]

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.plan)


def collate(texts: list[Tensor]) -> Tensor:
    return torch.cat(texts)[:BUDGET].unsqueeze(0)


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    steps = args.steps or 70
    lengths = np.random.default_rng(1).integers(32, 256, 60_000)
    sampler = Budgeted if args.arm == "faulty" else Planned
    loader = DataLoader(
        Texts(lengths), batch_sampler=sampler(lengths, steps), num_workers=2, collate_fn=collate
    )
    model = Decoder(hidden=64, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, ids in enumerate(loader):
        loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
