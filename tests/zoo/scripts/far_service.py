"""The loop asks a service for its next batch."""

from __future__ import annotations

import multiprocessing
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from _parts import arguments
from object_store import serve
from torch import Tensor, nn


class Service:
    def __init__(self, port: int) -> None:
        self.port, self.pool = port, ThreadPoolExecutor(8)

    def get(self, number: int) -> Tensor:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{number}") as answer:
            raw = answer.read()
        return torch.from_numpy(np.frombuffer(raw, dtype=np.float32).reshape(64, 256).copy())


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    context.Process(target=serve, args=(theirs, 0.03), daemon=True).start()
    service = Service(ours.recv())
    layer = nn.TransformerEncoderLayer(256, 4, 1024, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    steps, ahead = args.steps or 90, 8
    asked = [service.pool.submit(service.get, i) for i in range(ahead)]
    for step in range(steps):
        if args.arm == "fixed":
            rows = asked.pop(0).result()
            asked.append(service.pool.submit(service.get, step + ahead))
        else:
            rows = service.get(step)
        loss = model(rows.expand(4, 64, 256)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 30 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
