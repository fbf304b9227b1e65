"""Vision-language fine-tuning on sequences of 64 visual tokens and a text of any length."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from _parts import IMAGE_TOKEN, Decoder, arguments, caption, encode
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler


class Pairs(Dataset[list[int]]):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(3)
        lengths = torch.exp(5 + torch.randn(count, generator=generator)).clamp(16, 1500)
        self.lengths = [64 + int(length) for length in lengths]

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> list[int]:
        return [IMAGE_TOKEN] * 64 + encode(caption(index, self.lengths[index] - 64))


def collate(samples: list[list[int]]) -> dict[str, Tensor]:
    longest = max(map(len, samples))
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    mask = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, : len(sample)] = torch.tensor(sample)
        mask[row, : len(sample)] = 1
    labels = ids.masked_fill((mask == 0) | (ids == IMAGE_TOKEN), -100)
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


class Batches(Sampler[list[int]]):
    """Batches of ``size`` rows, in order or grouped by length within a window of 32 batches."""

    def __init__(self, lengths: list[int], size: int, grouped: bool) -> None:
        order = torch.randperm(len(lengths), generator=torch.Generator().manual_seed(1)).tolist()
        if grouped:
            window = 32 * size
            order = [
                index
                for start in range(0, len(order), window)
                for index in sorted(order[start : start + window], key=lengths.__getitem__)
            ]
        rows = [order[start : start + size] for start in range(0, len(order), size)]
        shuffled = torch.randperm(len(rows), generator=torch.Generator().manual_seed(2)).tolist()
        self.batches = [rows[i] for i in shuffled]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return iter(self.batches)


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    pairs = Pairs(8 * (args.steps or 40))
    batches = Batches(pairs.lengths, 8, grouped=args.arm == "fixed")
    loader = DataLoader(pairs, batch_sampler=batches, collate_fn=collate, num_workers=1)
    model = Decoder(hidden=64, layers=2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = 0
    for step, batch in enumerate(loader):
        loss = model(**batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        tokens += int(batch["attention_mask"].sum())
        if step % 8 == 7:
            print(f"step {step + 1} loss {loss.item():.3f} tokens {tokens}")


if __name__ == "__main__":
    main()
