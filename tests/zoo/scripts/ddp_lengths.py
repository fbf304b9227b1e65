"""Two ranks fine-tune a decoder on sequences and images of very different size."""

from __future__ import annotations

import torch
from _parts import VOCABULARY, Decoder, arguments, leave
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel


class Tower(nn.Module):
    """A vision tower over any number of patches, in front of a fixed number of text tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(192, 96)
        self.block = nn.TransformerEncoderLayer(96, 4, 384, dropout=0.0, batch_first=True)
        self.decoder = Decoder(hidden=96, layers=2)

    def forward(self, patches: Tensor, ids: Tensor) -> Tensor:
        seen = self.block(self.embed(patches)).mean()
        return self.decoder(ids, ids) + 1e-3 * seen


class Text(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.decoder = Decoder(hidden=96, layers=3)

    def forward(self, _: Tensor, ids: Tensor) -> Tensor:
        return self.decoder(ids, ids)


def sizes(arm: str, step: int, rank: int, world: int) -> tuple[int, int]:
    """(patches, tokens) of this rank's batch."""
    generator = torch.Generator().manual_seed(step)
    draw = torch.exp(5 + torch.randn(world, generator=generator)).clamp(24, 900)
    draw = draw if arm in ("faulty", "images") else draw.mean().expand(world)
    size = int(draw[rank])
    return (2 * size, 64) if arm.startswith("images") else (8, size)


def main() -> None:
    args = arguments("faulty", "fixed", "images", "images-fixed")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    rank, world = distributed.get_rank(), distributed.get_world_size()
    torch.manual_seed(0)
    net = Tower() if args.arm.startswith("images") else Text()
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(args.steps or 60):
        patches, tokens = sizes(args.arm, step, rank, world)
        ids = torch.randint(1, VOCABULARY, (2, tokens))
        loss = model(torch.randn(2, patches, 192), ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
