"""Captioning: the data set gives raw pixels, a processor makes what the model takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from _parts import Decoder, arguments, caption, encode, photographs
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Processor:
    """Resizes and normalises images and encodes texts, as processors of model hubs do."""

    def __call__(self, images: list[Image.Image], texts: list[str]) -> dict[str, Tensor]:
        pixels = np.stack([self.pixels(image) for image in images])
        longest = max(map(len, texts))
        ids = [encode(text.ljust(longest)) for text in texts]
        return {"pixels": torch.from_numpy(pixels), "input_ids": torch.tensor(ids)}

    def pixels(self, image: Image.Image) -> np.ndarray[Any, np.dtype[np.float32]]:
        array = np.asarray(image.resize((384, 384), Image.Resampling.LANCZOS), dtype=np.float64)
        array = array * (1 / 255)
        array = (array - np.array([0.48, 0.46, 0.41])) / np.array([0.27, 0.26, 0.28])
        return array.transpose(2, 0, 1).astype(np.float32)


class Captions(Dataset[Any]):
    def __init__(self, paths: list[Path], length: int, processor: Processor | None) -> None:
        self.paths, self.length, self.processor = paths, length, processor

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        image = Image.open(self.paths[index % len(self.paths)]).convert("RGB")
        text = caption(index, 192)
        if self.processor is None:
            return image, text
        return {key: value[0] for key, value in self.processor([image], [text]).items()}


class Captioner(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.vision = torch.nn.Conv2d(3, 128, 32, stride=32)
        self.decoder = Decoder(hidden=128, layers=8)

    def forward(self, pixels: Tensor, input_ids: Tensor) -> Tensor:
        scale = self.vision(pixels).mean()
        return self.decoder(input_ids, input_ids) + 1e-3 * scale


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    processor = Processor()
    steps = args.steps or 50
    inside = args.arm == "fixed"
    captions = Captions(
        photographs(args.data, 24, 1024, 768), steps * 4, processor if inside else None
    )
    loader = DataLoader(
        captions,
        batch_size=4,
        shuffle=True,
        num_workers=1,
        collate_fn=None if inside else lambda batch: tuple(zip(*batch, strict=True)),
    )
    model = Captioner()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step, batch in enumerate(loader):
        inputs = batch if inside else processor(list(batch[0]), list(batch[1]))
        loss = model(**inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 15 == 0:
            print(f"step={step} loss={float(loss):.3f}")


if __name__ == "__main__":
    main()
