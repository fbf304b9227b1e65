"""Two ranks over gloo; DistributedDataParallel is told to look for unused parameters."""

from __future__ import annotations

import torch
from _parts import Decoder, arguments, caption, encode, leave
from torch import distributed
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    args = arguments("searching")
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model = DistributedDataParallel(Decoder(hidden=96, layers=3), find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rank = distributed.get_rank()
    for step in range(args.steps or 80):
        ids = torch.tensor([encode(caption(8 * step + 4 * rank + i, 256)) for i in range(4)])
        loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
