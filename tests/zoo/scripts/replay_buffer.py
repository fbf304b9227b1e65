"""Preference training from a large in-memory buffer of Python records."""

from __future__ import annotations

import gc
import random
from typing import Any

import torch
from _parts import Decoder, arguments, caption, encode


def fill(records: int) -> list[dict[str, Any]]:
    return [{"id": i, "turns": [i, i + 1], "meta": {"source": i % 7}} for i in range(records)]


class Node:
    """A turn of a conversation that knows its parent and children."""

    def __init__(self, parent: Node | None = None) -> None:
        self.parent, self.children = parent, list[Node]()
        if parent is not None:
            parent.children.append(self)


def conversation(turns: int) -> Node:
    root = node = Node()
    for _ in range(turns):
        node = Node(node)
    return root


def main() -> None:
    args = arguments("faulty", "fixed", "collect", "collect-rarely")
    torch.set_num_threads(1)
    collect_every = {"collect": 1, "collect-rarely": 200}.get(args.arm, 0)
    buffer = fill(200_000 if collect_every else 700_000)
    if args.arm == "fixed":
        gc.freeze()
    order = random.Random(0)
    model = Decoder(hidden=96, layers=3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    kept: list[Node] = []
    for step in range(args.steps or 50):
        picked = order.sample(range(len(buffer)), 8)
        ids = torch.tensor([encode(caption(buffer[i]["id"], 96)) for i in picked])
        if not collect_every:
            kept = [conversation(2500) for _ in range(8)] + kept[:24]
        loss = model(ids, ids)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if collect_every and step % collect_every == 0:
            gc.collect()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
