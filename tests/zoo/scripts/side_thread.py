"""A thread prepares texts beside the training loop."""

from __future__ import annotations

import contextlib
import multiprocessing
import queue
import random
import threading
from itertools import pairwise
from typing import Any

import torch
from _parts import arguments
from torch import nn


def tokenize(text: str) -> list[int]:
    """A toy byte-pair encoder: merges the most common neighbours, in pure Python."""
    tokens = list(text.encode())
    for merge in range(20):
        counts: dict[tuple[int, int], int] = {}
        for pair in pairwise(tokens):
            counts[pair] = counts.get(pair, 0) + 1
        best = max(counts, key=lambda pair: counts[pair])
        merged, i = [], 0
        while i < len(tokens):
            if tuple(tokens[i : i + 2]) == best:
                merged.append(256 + merge)
                i += 2
            else:
                merged.append(tokens[i])
                i += 1
        tokens = merged
    return tokens


def produce(out: Any) -> None:
    source = random.Random(0)
    while True:
        text = "".join(source.choices("abcde fgh ", k=8000))
        tokens = tokenize(text)
        try:
            out.put(tokens, timeout=0.001)
        except queue.Full:
            continue


def watch_progress(done: list[int]) -> None:
    """Reports every hundred steps; looks for the next one without rest."""
    reported = 0
    while True:
        if done and done[-1] >= reported + 100:
            reported = done[-1]
            print(f"progress: {reported}", flush=True)


def main() -> None:
    args = arguments("faulty", "fixed", "progress")
    torch.set_num_threads(1)
    done: list[int] = []
    if args.arm == "progress":
        threading.Thread(target=watch_progress, args=(done,), daemon=True).start()
    if args.arm == "faulty":
        texts: Any = queue.Queue(maxsize=4)
        threading.Thread(target=produce, args=(texts,), daemon=True).start()
    else:
        context = multiprocessing.get_context("fork")
        texts = context.Queue(maxsize=4)
        context.Process(target=produce, args=(texts,), daemon=True).start()
    layers = [nn.Sequential(nn.Linear(256, 256), nn.Tanh()) for _ in range(10)]
    embed = nn.Embedding(300, 256)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD([*embed.parameters(), *model.parameters()], lr=0.01)
    tokens = torch.tensor(texts.get()[:64])
    for step in range(args.steps or (800 if args.arm == "fixed" else 60)):
        with contextlib.suppress(queue.Empty):
            tokens = torch.tensor(texts.get_nowait()[:64])
        loss = model(embed(tokens)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        done.append(step)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
