"""Fine-tunes Qwen3-VL on photographs with the Hugging Face Trainer, as many scripts do it.

    python trainer_qwen3vl.py --photos FOLDER --tokenizer FOLDER --output_dir OUT [OPTION …]

bf16, SDPA, batches padded to the longest, activation checkpointing, four loader workers: the
defaults of the recipes that people copy.  Random weights, since speed does not depend on them.
The file is a job for ``brim diagnose`` and ``brim tune``; nothing in it knows of them.
"""

from dataclasses import dataclass, field
from pathlib import Path

import torch
from PIL import Image
from torch.utils.data import Dataset
from transformers import (
    AutoTokenizer,
    HfArgumentParser,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
    Trainer,
    TrainingArguments,
)
from transformers.utils import is_torchvision_available

if is_torchvision_available():
    from transformers import Qwen2VLImageProcessor as ImageProcessor
else:
    from transformers import Qwen2VLImageProcessorPil as ImageProcessor

VISION, IMAGE, VISION_END = "<|vision_start|>", "<|image_pad|>", "<|vision_end|>"
TINY = {
    "text": {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
             "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
             "rope_parameters": {"rope_type": "default", "rope_theta": 5e6,
                                 "mrope_section": [4, 2, 2], "mrope_interleaved": True}},
    "vision": {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2,
               "out_hidden_size": 64, "deepstack_visual_indexes": [0],
               "num_position_embeddings": 2304},
    "pixels": 96 * 96,
}  # fmt: skip
QWEN3_VL_4B = {
    "text": {"hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
             "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128},
    "vision": {"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "num_heads": 16,
               "out_hidden_size": 2560, "deepstack_visual_indexes": [5, 11, 17]},
    "pixels": 1024 * 1024,
}  # fmt: skip


@dataclass
class Arguments:
    photos: Path = field(metadata={"help": "folder of JPEG files"})
    tokenizer: str = field(metadata={"help": "folder or hub id of a Qwen tokenizer"})
    tiny: bool = field(default=False, metadata={"help": "a small model, for any machine"})


def make_model(shapes: dict, tokenizer, device: str) -> Qwen3VLForConditionalGeneration:
    ids = tokenizer.convert_tokens_to_ids
    config = Qwen3VLConfig(
        text_config={"vocab_size": 151936, **shapes["text"]}, vision_config=shapes["vision"],
        image_token_id=ids(IMAGE), video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids(VISION), vision_end_token_id=ids(VISION_END),
        tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16 if device == "cuda" else torch.float32)
    with torch.device(device):
        model = Qwen3VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
    return model


class Chats(Dataset):
    """A photograph, a question, and an answer of 30 to 500 words."""

    def __init__(self, folder: Path, samples: int) -> None:
        self.files, self.samples = sorted(folder.glob("*.jpg")), samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> dict:
        words = 30 + (index * 7919) % 470
        image = Image.open(self.files[index % len(self.files)]).convert("RGB")
        return {
            "image": image,
            "question": "What is to be seen here?",
            "answer": "a house " * words,
        }


class Collator:
    def __init__(self, tokenizer, pixels: int) -> None:
        self.tokenizer = tokenizer
        self.processor = ImageProcessor(
            patch_size=16, merge_size=2, image_mean=[0.5] * 3, image_std=[0.5] * 3,
            size={"shortest_edge": 32 * 32, "longest_edge": pixels},
        )  # fmt: skip

    def __call__(self, rows: list[dict]) -> dict[str, torch.Tensor]:
        images = self.processor([row["image"] for row in rows], return_tensors="pt")
        texts = []
        for row, grid in zip(rows, images["image_grid_thw"], strict=True):
            picture = VISION + IMAGE * (int(grid.prod()) // 4) + VISION_END
            question = f"<|im_start|>user\n{picture}{row['question']}<|im_end|>\n"
            texts.append(f"{question}<|im_start|>assistant\n{row['answer']}<|im_end|>")
        batch = self.tokenizer(texts, padding=True, return_tensors="pt")
        ids = batch["input_ids"]
        image = ids == self.tokenizer.convert_tokens_to_ids(IMAGE)
        labels = ids.masked_fill((batch["attention_mask"] == 0) | image, -100)
        return {**batch, **images, "labels": labels, "mm_token_type_ids": image.int()}


def main() -> None:
    arguments, training = HfArgumentParser(
        (Arguments, TrainingArguments)
    ).parse_args_into_dataclasses()
    shapes = TINY if arguments.tiny else QWEN3_VL_4B
    tokenizer = AutoTokenizer.from_pretrained(arguments.tokenizer)
    samples = training.max_steps * training.per_device_train_batch_size
    trainer = Trainer(
        model=make_model(shapes, tokenizer, training.device.type),
        args=training,
        train_dataset=Chats(arguments.photos, samples * training.gradient_accumulation_steps),
        data_collator=Collator(tokenizer, shapes["pixels"]),
    )
    trainer.train()


if __name__ == "__main__":
    main()
