"""A plain PyTorch loop over a causal model; the loss is read where it is printed."""

from __future__ import annotations

import math

import torch
from _parts import Decoder, arguments, caption, encode
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Lines(Dataset[Tensor]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(encode(caption(index, 192)))


def main() -> None:
    args = arguments("workers", "inline", "item", "checkpoints", "clipped")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    steps = args.steps or 60
    loader = DataLoader(
        Lines(steps * 8), batch_size=8, shuffle=True, num_workers=0 if args.arm == "inline" else 2
    )
    model = Decoder(hidden=128, layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    running = 0.0
    for step, ids in enumerate(loader):
        loss = model(ids, ids)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if args.arm == "clipped":
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if args.arm == "item":
            running = 0.9 * running + 0.1 * loss.item()
            if not math.isfinite(running):
                raise SystemExit("the loss is not finite")
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")
        if args.arm == "checkpoints" and step % 40 == 39:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, args.data / "last.pt")


if __name__ == "__main__":
    main()
