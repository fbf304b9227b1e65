"""Trains a small vision transformer on photographs, decoding them in the training process.

    python photo_classifier.py --photos FOLDER [--steps N] [--batch-size N] [--workers N]

torch and Pillow only, for tuners of any kind (``benchmarks/tune_peers.py``, ``brim tune``).  The
labels are made up: speed does not depend on them.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset

SIDE, PATCH, CLASSES = 160, 16, 10


class Photos(Dataset):
    """Each photograph as often as it takes to have ``samples``."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.files, self.samples = sorted(folder.glob("*.jpg")), samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.files[index % len(self.files)]) as file:
            image = file.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels.float() / 127.5 - 1, index % CLASSES


class Classifier(nn.Module):
    def __init__(self, width: int = 256, depth: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, PATCH, PATCH)
        self.place = nn.Parameter(torch.zeros(1, (SIDE // PATCH) ** 2, width))
        block = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(block, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        patches = self.patches(pixels).flatten(2).transpose(1, 2) + self.place
        return self.head(self.blocks(patches).mean(1))


def make() -> tuple[Classifier, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = Classifier()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-4)


def step(
    model: nn.Module, optimizer: torch.optim.Optimizer, pixels: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    loss = nn.functional.cross_entropy(model(pixels), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    photos = Photos(args.photos, args.steps * args.batch_size)
    model, optimizer = make()
    loader = DataLoader(photos, args.batch_size, shuffle=True, num_workers=args.workers)
    for n, (pixels, labels) in enumerate(loader):
        loss = step(model, optimizer, pixels, labels)
        if n % 20 == 0:
            print(f"step {n} loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
