"""Train two towers to find each other's rows; how well they do is counted on the way."""

from __future__ import annotations

import numpy as np
import torch
from _parts import arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class AveragePrecision:
    """Of all queries seen lately, each against all targets seen lately."""

    def __init__(self, keep: int = 12) -> None:
        self.keep, self.queries, self.targets = keep, list[np.ndarray](), list[np.ndarray]()

    def update(self, queries: Tensor, targets: Tensor) -> None:
        self.queries = [queries.detach().numpy(), *self.queries[: self.keep - 1]]
        self.targets = [targets.detach().numpy(), *self.targets[: self.keep - 1]]

    def compute(self) -> float:
        queries, targets = np.concatenate(self.queries), np.concatenate(self.targets)
        order = np.argsort(-queries @ targets.T, axis=1)
        ranks = [int(np.flatnonzero(row == i)[0]) for i, row in enumerate(order)]
        return float(np.mean(1.0 / (1.0 + np.asarray(ranks))))


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    steps, every = args.steps or 100, 1 if args.arm == "faulty" else 50
    left, right = (
        nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 128)) for _ in range(2)
    )
    optimizer = torch.optim.AdamW([*left.parameters(), *right.parameters()], lr=1e-3)
    rows = TensorDataset(torch.randn(steps * 64, 512))
    seen = AveragePrecision()
    for step, (x,) in enumerate(DataLoader(rows, batch_size=64, num_workers=1)):
        a, b = left(x), right(x + 0.1 * torch.randn_like(x))
        loss = nn.functional.cross_entropy(a @ b.T, torch.arange(len(x)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.update(a, b)
        if step % every == 0:
            precision = seen.compute()
        if step % 50 == 0:
            print(f"{step}: loss {loss.item():.3f} precision {precision:.3f}")


if __name__ == "__main__":
    main()
