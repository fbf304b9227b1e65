"""Supervised fine-tuning of a tiny Qwen3-VL with the Hugging Face Trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from _parts import arguments as parse
from _parts import caption, chat, pad_chats, patches, photographs, qwen3_vl
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments


class Conversations(Dataset[dict[str, Any]]):
    """PIL images with a question and an answer."""

    def __init__(self, paths: list[Path], length: int) -> None:
        self.paths, self.length = paths, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> dict[str, Any]:
        path = self.paths[index % len(self.paths)]
        return {
            "image": Image.open(path),
            "question": "What is in the picture?",
            "answer": caption(index, 120),
        }


def collate(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
    samples = []
    for example in examples:
        pixels, grid = patches(example["image"], 256, 192)
        tokens, labels = chat(len(pixels), example["question"], example["answer"])
        samples.append({"tokens": tokens, "labels": labels, "patches": pixels, "grid": grid})
    return pad_chats(samples)


def main() -> None:
    args = parse("faulty", "fixed", "large", "large-fixed")
    torch.set_num_threads(1)
    large = args.arm.startswith("large")
    paths = photographs(args.data, 24, *((2400, 1800) if large else (1600, 1200)))
    options: dict[str, Any] = {"dataloader_num_workers": 2} if "fixed" in args.arm else {}
    settings = TrainingArguments(
        output_dir=str(args.data / "sft"),
        per_device_train_batch_size=4,
        max_steps=args.steps or 40,
        learning_rate=1e-4,
        logging_steps=10,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        **options,
    )
    Trainer(
        model=qwen3_vl() if large else qwen3_vl(hidden=128, layers=4, depth=4),
        args=settings,
        train_dataset=Conversations(paths, 400),
        data_collator=collate,
    ).train()


if __name__ == "__main__":
    main()
