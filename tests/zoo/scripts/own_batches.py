"""No loader class at all: a generator makes the batches."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from pathlib import Path

import torch
from _parts import Classifier, arguments, normalise, photographs
from PIL import Image
from torch import Tensor


def load(path: Path) -> Tensor:
    return normalise(Image.open(path), 224)


def one_thread(path: Path) -> bytes:
    torch.set_num_threads(1)
    return load(path).numpy().tobytes()


def batches(paths: list[Path], size: int) -> Iterator[Tensor]:
    order = random.Random(0)
    while True:
        yield torch.stack([load(path) for path in order.sample(paths, size)])


def batches_ahead(paths: list[Path], size: int, pool: ProcessPoolExecutor) -> Iterator[Tensor]:
    order = random.Random(0)
    jobs = [pool.map(one_thread, order.sample(paths, size)) for _ in range(4)]
    while True:
        raw = b"".join(jobs.pop(0))
        jobs.append(pool.map(one_thread, order.sample(paths, size)))
        yield torch.frombuffer(bytearray(raw), dtype=torch.float32).view(size, 3, 224, 224)


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    paths = photographs(args.data, 32, 1024, 768)
    model = Classifier(width=128)
    weights = list(model.parameters())
    with ProcessPoolExecutor(1) as pool:
        ahead = args.arm == "fixed"
        stream = batches_ahead(paths, 8, pool) if ahead else batches(paths, 8)
        optimizer = torch.optim.Adam(weights, lr=1e-3)
        for step, images in enumerate(islice(stream, args.steps or 60)):
            scores = model(images)
            loss = torch.nn.functional.cross_entropy(scores, torch.arange(8) % 10)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step % 10 == 9:
                print(f"{step + 1} batches, loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
