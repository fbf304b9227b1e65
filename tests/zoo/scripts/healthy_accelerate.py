"""The same tiny Qwen3-VL in an Accelerate loop, with gradient accumulation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from _parts import arguments, caption, chat, pad_chats, patches, photographs, qwen3_vl
from accelerate import Accelerator
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Captions(Dataset[dict[str, Any]]):
    def __init__(self, paths: list[Path], length: int) -> None:
        self.paths, self.length = paths, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels, grid = patches(Image.open(self.paths[index % len(self.paths)]), 256, 192)
        tokens, labels = chat(len(pixels), "Caption:", caption(index, 150))
        return {"tokens": tokens, "labels": labels, "patches": pixels, "grid": grid}


def main() -> None:
    args = arguments("plain", "accumulate")
    accumulate = 4 if args.arm == "accumulate" else 1
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    steps = args.steps or (36 if accumulate > 1 else 70)
    size = 1 if accumulate > 1 else 4
    captions = Captions(photographs(args.data, 24, 640, 480), steps * accumulate * size)
    model = qwen3_vl(layers=4, depth=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    loader = DataLoader(
        captions, batch_size=size, shuffle=True, num_workers=1, collate_fn=pad_chats
    )
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for step, batch in enumerate(loader):
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if step % 20 == 0:
            accelerator.print(f"{step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
