"""Two ranks over gloo train a deep stack of small layers."""

from __future__ import annotations

import contextlib

import torch
from _parts import arguments, leave
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel

BUCKET_MB = {"faulty": 0.001, "fixed": 25.0, "each": 25.0, "last": 25.0}


class Stack(nn.Module):
    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


def main() -> None:
    args = arguments("faulty", "fixed", "each", "last")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    accumulate = 8 if args.arm in ("each", "last") else 1
    torch.manual_seed(0)
    stack = Stack(8, 768) if accumulate > 1 else Stack(300, 24)
    width = 768 if accumulate > 1 else 24
    model = DistributedDataParallel(stack, bucket_cap_mb=BUCKET_MB[args.arm])
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step in range(args.steps or (40 if accumulate > 1 else 100)):
        for micro in range(accumulate):
            late = args.arm == "last" and micro < accumulate - 1
            with model.no_sync() if late else contextlib.nullcontext():
                loss = model(torch.randn(32, width)).square().mean() / accumulate
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and distributed.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
