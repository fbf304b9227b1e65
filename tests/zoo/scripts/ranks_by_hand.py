"""Two ranks average their gradients by hand, without DistributedDataParallel."""

from __future__ import annotations

import torch
from _parts import arguments, leave
from torch import distributed, nn


def average(parameters: list[nn.Parameter], *, flat: bool) -> None:
    """The mean gradient on all ranks: a call for each tensor, or one for all."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if not flat:
        for gradient in gradients:
            distributed.all_reduce(gradient)
            gradient /= distributed.get_world_size()
        return
    joined = torch.cat([gradient.flatten() for gradient in gradients])
    distributed.all_reduce(joined)
    joined /= distributed.get_world_size()
    for gradient, part in zip(gradients, joined.split([g.numel() for g in gradients]), strict=True):
        gradient.copy_(part.view_as(gradient))


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.Tanh()) for _ in range(120)))
    parameters = list(model.parameters())
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    for step in range(args.steps or 120):
        loss = model(torch.randn(64, 32)).square().mean()
        loss.backward()
        average(parameters, flat=args.arm == "fixed")
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and distributed.get_rank() == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
