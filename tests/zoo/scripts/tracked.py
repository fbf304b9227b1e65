"""A training script with an experiment tracker."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _parts import Decoder, arguments, caption, encode
from torch import nn


class Tracker:
    """Writes every record to disk at once, as trackers do that must survive a crash."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.file = path.open("w")

    def log(self, record: dict[str, Any]) -> None:
        self.file.write(json.dumps(record) + "\n")
        self.file.flush()
        os.fsync(self.file.fileno())

    def log_gradients(self, step: int, model: nn.Module) -> None:
        for name, weight in model.named_parameters():
            if weight.grad is not None:
                counts, edges = np.histogram(weight.grad.cpu().numpy(), bins=64)
                self.log({"step": step, name: counts.tolist(), "edges": edges.tolist()})


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    every = 1 if args.arm == "faulty" else 500
    tracker = Tracker(args.data / "track.jsonl")
    model = Decoder(hidden=128, layers=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps or 80):
        ids = torch.tensor([encode(caption(step * 4 + i, 96)) for i in range(4)])
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        if step % every == 0:
            tracker.log_gradients(step, model)
            tracker.log({"step": step, "loss": loss.item()})
        optimizer.step()
    print("done")


if __name__ == "__main__":
    main()
