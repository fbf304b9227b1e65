"""Sequence classification with nn.Transformer and a padding mask; batches grouped by length."""

from __future__ import annotations

import torch
from _parts import arguments
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

SIZE = 12
WINDOW = {"faulty": 1, "fixed": 64}


class Reviews(Dataset[tuple[Tensor, int]]):
    def __init__(self, count: int) -> None:
        generator = torch.Generator().manual_seed(5)
        lengths = torch.exp(4 + 0.9 * torch.randn(count, generator=generator)).clamp(8, 600).int()
        self.texts = [
            torch.randint(1, 1000, (int(length),), generator=generator) for length in lengths
        ]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.texts[index], index % 5


def grouped(reviews: Reviews, window: int) -> list[list[int]]:
    """Shuffled, then sorted by length inside mega-batches of ``window`` batches."""
    order = torch.randperm(len(reviews), generator=torch.Generator().manual_seed(0)).tolist()
    mega = SIZE * window
    rows: list[int] = []
    for start in range(0, len(order), mega):
        rows += sorted(order[start : start + mega], key=lambda i: -len(reviews.texts[i]))
    batches = [rows[i : i + SIZE] for i in range(0, len(rows), SIZE)]
    again = torch.randperm(len(batches), generator=torch.Generator().manual_seed(1)).tolist()
    return [batches[i] for i in again]


def collate(batch: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    texts, labels = zip(*batch, strict=True)
    return pad_sequence(list(texts), batch_first=True), torch.tensor(labels)


class Reader(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(1000, 64, padding_idx=0)
        layer = nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
        self.head = nn.Linear(64, 5)

    def forward(self, tokens: Tensor) -> Tensor:
        padding = tokens == 0
        x = self.encoder(self.embed(tokens), src_key_padding_mask=padding)
        return self.head(x.masked_fill(padding[..., None], 0).sum(1))


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    reviews = Reviews((args.steps or 64) * SIZE)
    loader = DataLoader(
        reviews, batch_sampler=grouped(reviews, WINDOW[args.arm]), collate_fn=collate, num_workers=1
    )
    model = Reader()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    seen = 0.0
    for step, (tokens, labels) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(tokens), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += loss.item()
        if step % 16 == 15:
            print(f"step {step + 1}: mean loss {seen / 16:.3f}")
            seen = 0.0


if __name__ == "__main__":
    main()
