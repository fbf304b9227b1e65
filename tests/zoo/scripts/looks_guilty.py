"""All that one is warned of, in doses that cost nothing."""

from __future__ import annotations

import gc
import json

import torch
from _parts import Decoder, arguments, caption, encode
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Texts(Dataset[Tensor]):
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor(encode(caption(index, 160)))


def main() -> None:
    args = arguments("chatty")
    torch.set_num_threads(1)
    gc.freeze()
    steps = args.steps or 100
    model = Decoder(hidden=192, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    loader = DataLoader(Texts(steps * 8), batch_size=8)  # no workers
    with (args.data / "losses.jsonl").open("w") as log:
        for step, ids in enumerate(loader):
            loss = model(ids, ids)
            optimizer.zero_grad()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            log.write(json.dumps({"step": step, "loss": loss.item(), "norm": float(norm)}) + "\n")
            print(f"step {step} loss {loss.item():.4f}")
            if step % 30 == 0:
                gc.collect()


if __name__ == "__main__":
    main()
