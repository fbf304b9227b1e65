"""Fetch every sample from an object store over HTTP."""

from __future__ import annotations

import multiprocessing
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from _parts import arguments
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

ANSWER_S = {"faulty": 0.05, "many": 0.05, "fixed": 0.0}
WORKERS = {"faulty": 2, "many": 12, "fixed": 2}


class Objects(BaseHTTPRequestHandler):
    """Answers after the time that a far store takes to find an object."""

    answer_s = 0.0
    body = np.random.default_rng(0).standard_normal(64 * 256).astype(np.float32).tobytes()

    def do_GET(self) -> None:
        time.sleep(self.answer_s)
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        """The store keeps its own log."""


def serve(port: Connection, answer_s: float) -> None:
    Objects.answer_s = answer_s
    server = ThreadingHTTPServer(("127.0.0.1", 0), Objects)
    port.send(server.server_address[1])
    server.serve_forever()


class Remote(Dataset[Tensor]):
    def __init__(self, port: int, length: int) -> None:
        self.port, self.length = port, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{index}") as answer:
            raw = answer.read()
        return torch.from_numpy(np.frombuffer(raw, dtype=np.float32).reshape(64, 256).copy())


def main() -> None:
    args = arguments("faulty", "many", "fixed")
    torch.set_num_threads(1)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    store = context.Process(target=serve, args=(theirs, ANSWER_S[args.arm]), daemon=True)
    store.start()
    steps = args.steps or 60
    objects = Remote(ours.recv(), steps * 8)
    loader = DataLoader(objects, batch_size=8, num_workers=WORKERS[args.arm])
    layer = nn.TransformerEncoderLayer(256, 4, 512, batch_first=True)
    model = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, batch in enumerate(loader):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
