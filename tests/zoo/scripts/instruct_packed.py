"""Instruction tuning with the Trainer; the recipe has a switch for packing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from _parts import VOCABULARY, arguments, caption, encode
from torch import Tensor
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

LONGEST = 384


@dataclass
class Recipe:
    packing: bool = True
    max_length: int = LONGEST


class Instructions(Dataset[dict[str, list[int]]]):
    """Texts of 24 to 384 bytes, mostly short."""

    def __init__(self, recipe: Recipe, count: int, wired: bool) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = (24 + 360 * torch.rand(count, generator=generator) ** 3).int().tolist()
        texts = [encode(caption(i, size)) for i, size in enumerate(sizes)]
        self.rows = pack(texts, recipe.max_length) if wired and recipe.packing else texts

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {"input_ids": self.rows[index]}


def pack(texts: list[list[int]], size: int) -> list[list[int]]:
    """Texts end to end in rows of ``size``; the rest of the last is dropped."""
    stream = [token for text in texts for token in text]
    return [stream[i : i + size] for i in range(0, len(stream) - size, size)]


def collate(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    ids = torch.zeros(len(rows), LONGEST, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for i, row in enumerate(rows):
        size = len(row["input_ids"])
        ids[i, :size] = torch.tensor(row["input_ids"])
        mask[i, :size] = 1
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    steps = args.steps or 40
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=96, intermediate_size=256, num_hidden_layers=3,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024,
    )  # fmt: skip
    options: dict[str, Any] = {"report_to": [], "use_cpu": True, "save_strategy": "no"}
    settings = TrainingArguments(
        output_dir=str(args.data / "instruct"),
        per_device_train_batch_size=4,
        max_steps=steps,
        logging_steps=10,
        remove_unused_columns=False,
        **options,
    )
    rows = Instructions(Recipe(), steps * 16, wired=args.arm == "fixed")
    Trainer(
        model=LlamaForCausalLM(config), args=settings, train_dataset=rows, data_collator=collate
    ).train()


if __name__ == "__main__":
    main()
