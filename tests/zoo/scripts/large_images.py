"""Qwen-like image processing of camera images in the workers."""

from __future__ import annotations

from pathlib import Path

import torch
from _parts import arguments, photographs
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil


class Images(Dataset[Tensor]):
    def __init__(self, paths: list[Path], length: int, max_pixels: int) -> None:
        self.paths, self.length = paths, length
        self.processor = Qwen2VLImageProcessorPil(
            patch_size=16, merge_size=2, size={"shortest_edge": 4096, "longest_edge": max_pixels}
        )

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        image = Image.open(self.paths[index % len(self.paths)]).convert("RGB")
        return self.processor(image, return_tensors="pt")["pixel_values"]


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    paths = photographs(args.data, 24, 1024, 768)
    steps = args.steps or 40
    images = Images(paths, steps * 2, 4_000_000 if args.arm == "faulty" else 128 * 128)
    loader = DataLoader(images, batch_size=2, num_workers=2, collate_fn=torch.cat)
    model = nn.Sequential(nn.Linear(1536, 32), nn.GELU(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, patches in enumerate(loader):
        loss = model(patches).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step} {len(patches)} patches loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
