"""Train on the CPU with as many threads as the build server had."""

from __future__ import annotations

import torch
from _parts import Decoder, arguments, caption, encode


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(24 if args.arm == "faulty" else 1)
    model = Decoder(hidden=128, layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps or 100):
        ids = torch.tensor([encode(caption(step * 8 + i, 96)) for i in range(8)])
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 25 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
