"""The question that the profiler was to answer is answered; it still follows every step."""

from __future__ import annotations

import contextlib

import torch
from _parts import arguments
from torch import Tensor, nn


class Tree(nn.Module):
    """A recursive net: thousands of tiny operations and Python objects a step."""

    def __init__(self) -> None:
        super().__init__()
        self.leaf, self.join = nn.Linear(8, 16), nn.Linear(32, 16)

    def forward(self, x: Tensor, depth: int) -> Tensor:
        if depth == 0:
            return torch.tanh(self.leaf(x))
        both = [self.forward(x.roll(k), depth - 1) for k in range(2)]
        return torch.tanh(self.join(torch.cat(both, -1)))


def main() -> None:
    args = arguments("operations", "fixed")
    torch.set_num_threads(1)
    watching = (
        torch.profiler.profile(record_shapes=True)
        if args.arm == "operations"
        else contextlib.nullcontext()
    )
    model = Tree()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    with watching:
        for step in range(args.steps or 180):
            loss = model(torch.randn(4, 8), 7).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 50 == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
