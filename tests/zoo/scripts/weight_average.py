"""Training with an average of the weights beside the weights."""

from __future__ import annotations

import copy

import torch
from _parts import Decoder, arguments, caption, encode
from torch import nn


class Average:
    """An exponential average, kept as a model that could be used at once."""

    def __init__(self, model: nn.Module) -> None:
        self.shadow = copy.deepcopy(model)

    def refresh(self, model: nn.Module, decay: float = 0.99) -> None:
        """The old average and the model, mixed in a copy of the model."""
        mixed = copy.deepcopy(model)
        old = self.shadow.state_dict()
        for name, value in mixed.state_dict().items():
            value.mul_(1 - decay).add_(old[name], alpha=decay)
        self.shadow = mixed

    @torch.no_grad()
    def blend(self, model: nn.Module, decay: float = 0.99) -> None:
        """In place."""
        torch._foreach_lerp_(
            list(self.shadow.parameters()), list(model.parameters()), weight=1 - decay
        )


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    model = Decoder(hidden=384, layers=6)
    average = Average(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(args.steps or 120):
        ids = torch.tensor([encode(caption(step, 12))])
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if args.arm == "faulty":
            average.refresh(model)
        elif step % 10 == 9:
            average.blend(model)
        if step % 40 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
