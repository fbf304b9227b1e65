"""Instruction tuning of a tiny Qwen3-VL with the Trainer and loader workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from _parts import arguments, caption, chat, pad_chats, patches, photographs, qwen3_vl
from PIL import Image
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Instructions(Dataset[dict[str, Any]]):
    def __init__(self, paths: list[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return 400

    def __getitem__(self, index: int) -> dict[str, Any]:
        pixels, grid = patches(Image.open(self.paths[index % len(self.paths)]), 256, 256)
        tokens, labels = chat(len(pixels), "Describe the scene.", caption(index, 180))
        return {"tokens": tokens, "labels": labels, "patches": pixels, "grid": grid}


def main() -> None:
    args = arguments("single", "accumulate")
    torch.set_num_threads(1)
    accumulate = args.arm == "accumulate"
    settings = TrainingArguments(
        output_dir=str(args.data / "instructions"),
        per_device_train_batch_size=1 if accumulate else 4,
        gradient_accumulation_steps=4 if accumulate else 1,
        max_steps=args.steps or (36 if accumulate else 60),
        logging_steps=5,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        dataloader_num_workers=1,
        dataloader_prefetch_factor=4,
    )
    trainer = Trainer(
        model=qwen3_vl(layers=4, depth=4),
        args=settings,
        train_dataset=Instructions(photographs(args.data, 24, 640, 480)),
        data_collator=pad_chats,
    )
    trainer.train()


if __name__ == "__main__":
    main()
