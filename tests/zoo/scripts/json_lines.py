"""Language modelling on a file of JSON lines, with gradient accumulation, without a loader."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from _parts import Decoder, arguments, caption, encode
from torch import Tensor

LENGTH, BATCH, ACCUMULATE = 128, 4, 2


def write(path: Path, records: int = 400) -> None:
    """Pages as a crawler leaves them: a text, and far more about where it comes from."""
    with path.open("w") as file:
        for i in range(records):
            links = [{"href": f"https://example.org/{i}/{j}", "rank": j} for j in range(6000)]
            file.write(json.dumps({"links": links, "text": caption(i, 2 * LENGTH)}) + "\n")


class Pages:
    """Batches straight from the file."""

    def __init__(self, path: Path) -> None:
        self.lines, self.at = path.read_text().splitlines(), 0

    def get_batch(self) -> Tensor:
        rows = []
        for _ in range(BATCH):
            record = json.loads(self.lines[self.at % len(self.lines)])
            self.at += 1
            rows.append(np.asarray(encode(record["text"])[:LENGTH], dtype=np.int64))
        return torch.from_numpy(np.stack(rows))


class Tokens:
    """Batches from an array that was made beforehand."""

    def __init__(self, path: Path) -> None:
        stored = path.with_suffix(".npy")
        if not stored.exists():
            texts = [json.loads(line)["text"] for line in path.read_text().splitlines()]
            np.save(stored, np.asarray([encode(text)[:LENGTH] for text in texts], dtype=np.uint16))
        self.rows, self.at = np.load(stored, mmap_mode="r"), 0

    def get_batch(self) -> Tensor:
        at = np.arange(self.at, self.at + BATCH) % len(self.rows)
        self.at += BATCH
        return torch.from_numpy(self.rows[at].astype(np.int64))


def train(steps: int, get_batch: Callable[[], Tensor]) -> None:
    model = Decoder(hidden=96, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(steps):
        for _ in range(ACCUMULATE):
            ids = get_batch()
            loss = model(ids, ids) / ACCUMULATE
            loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 50 == 0:
            print(f"iter {step}: loss {ACCUMULATE * loss.item():.4f}")


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    path = args.data / "pages.jsonl"
    if not path.exists():
        write(path)
    pages = Pages(path) if args.arm == "faulty" else Tokens(path)
    train(args.steps or (120 if args.arm == "faulty" else 200), pages.get_batch)


if __name__ == "__main__":
    main()
