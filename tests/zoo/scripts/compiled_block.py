"""Policy training with torch.compile; sequence lengths differ from step to step."""

from __future__ import annotations

import torch
from _parts import arguments
from torch import Tensor, nn


class Policy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(128, 1024), nn.GELU(), nn.Linear(1024, 128))
        self.head = nn.Linear(128, 16)
        self.limit = 0

    def forward(self, x: Tensor, source: str) -> Tensor:
        if source.startswith("held-out"):
            x = x.detach()
        keep = torch.arange(x.shape[1]) < self.limit
        return self.head(self.body(x) * keep[None, :, None])


def main() -> None:
    args = arguments("faulty", "fixed", "again")
    torch.set_num_threads(1)
    torch._dynamo.config.recompile_limit = 1000
    torch._dynamo.config.accumulated_recompile_limit = 4000
    model = Policy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    compiled = torch.compile(model, backend="eager")

    def loss_of(x: Tensor, source: str) -> Tensor:
        return compiled(x, source).log_softmax(-1)[..., 0].neg().mean()

    steps = args.steps or 60
    for step in range(steps):
        x = torch.randn(16, 96, 128)
        model.limit = 32 + (step * 37) % 64 if args.arm == "faulty" else 96
        loss = loss_of(x, f"rollout-{step}" if args.arm == "again" else "rollout")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"update {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
