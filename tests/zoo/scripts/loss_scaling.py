"""Loss scaling with a scale that is too high now and then: those steps are skipped."""

from __future__ import annotations

import torch
from _parts import Decoder, arguments, caption, encode


def main() -> None:
    args = arguments("skips")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = Decoder(hidden=96, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16, growth_interval=5)
    for step in range(args.steps or 160):
        ids = torch.tensor([encode(caption(4 * step + i, 256)) for i in range(4)])
        loss = model(ids, ids)
        overflow = float("inf") if step % 3 == 2 else 1.0
        scaler.scale(loss * overflow).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}, scale {scaler.get_scale():.0f}", flush=True)


if __name__ == "__main__":
    main()
