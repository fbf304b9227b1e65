"""What many small training scripts share: photographs, a byte tokenizer, tiny models, arguments."""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageDraw
from torch import Tensor, distributed, nn

IMAGE_TOKEN, VISION_START, VISION_END, VIDEO_TOKEN = 256, 257, 258, 259
VOCABULARY = 260
KEPT: list[Any] = []


def arguments(*arms: str) -> argparse.Namespace:
    """``--arm``, ``--steps`` (0: the script's own length) and ``--data`` (a folder to fill)."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--arm", choices=arms, default=arms[0])
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "zoo-data")
    return parser.parse_args()


def leave() -> None:
    """End the process group; the group itself lives on.

    Its threads let go of the last collective under a lock, for which they may need the
    interpreter; a thread of the interpreter that destroys the group waits for that lock.
    """
    KEPT.append(distributed.group.WORLD)
    distributed.destroy_process_group()


def photograph(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Soft gradients, a few shapes and sensor noise: compresses about as a real photograph does."""
    coarse = rng.integers(0, 255, (12, 16, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    draw = ImageDraw.Draw(image)
    for _ in range(12):
        x, y = int(rng.integers(width)), int(rng.integers(height))
        w, h = int(rng.integers(width // 4)), int(rng.integers(height // 4))
        colour = tuple(int(c) for c in rng.integers(0, 255, 3))
        draw.ellipse((x, y, x + w, y + h), fill=colour)
    noise = rng.integers(-8, 8, (height, width, 1), dtype=np.int16)
    pixels = np.asarray(image, dtype=np.int16) + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def photographs(data: Path, count: int, width: int, height: int) -> list[Path]:
    """``count`` JPEG files of ``width`` × ``height``, written once and then reused."""
    folder = data / f"{width}x{height}"
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{i:04d}.jpg" for i in range(count)]
    for i, path in enumerate(paths):
        if not path.exists():
            part = path.with_suffix(f".{os.getpid()}.part")
            photograph(np.random.default_rng(i), width, height).save(part, "JPEG", quality=90)
            part.replace(path)
    return paths


def normalise(image: Image.Image, size: int) -> Tensor:
    """RGB image → float tensor (3, size, size) in [-1, 1]."""
    small = image.convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
    pixels = torch.from_numpy(np.asarray(small, dtype=np.float32) / 127.5 - 1.0)
    return pixels.permute(2, 0, 1).contiguous()


def encode(text: str) -> list[int]:
    """Bytes as tokens."""
    return list(text.encode())


def caption(index: int, length: int) -> str:
    """A deterministic sentence of exactly ``length`` bytes."""
    words = ("a grey boat", "two dogs", "the old bridge", "red leaves", "at noon", "in the rain")
    text = ", ".join(words[(index * 7 + i * i) % len(words)] for i in range(length // 6 + 2))
    return text[:length]


class Decoder(nn.Module):
    """A causal transformer over byte tokens; ``forward`` gives the mean loss of the labels."""

    def __init__(self, hidden: int = 128, layers: int = 4, longest: int = 2048) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, hidden)
        self.places = nn.Embedding(longest, hidden)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(
                hidden, 4, 4 * hidden, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(layers)
        )
        self.norm = nn.LayerNorm(hidden)
        self.head = nn.Linear(hidden, VOCABULARY, bias=False)

    def features(self, input_ids: Tensor) -> Tensor:
        """(batch, length) → (batch, length, hidden)."""
        length = input_ids.shape[1]
        x = self.tokens(input_ids) + self.places(torch.arange(length, device=input_ids.device))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.norm(x)

    def forward(
        self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        """Mean cross-entropy; labels of -100 do not count (padding is to the right)."""
        logits = self.head(self.features(input_ids))[:, :-1]
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
        )


class Classifier(nn.Module):
    """A small convolutional net over (batch, 3, size, size)."""

    def __init__(self, width: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=4), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2), nn.ReLU(),
            nn.Conv2d(2 * width, 4 * width, 3, stride=2), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        return self.net(images)


def qwen3_vl(hidden: int = 64, layers: int = 2, depth: int = 2) -> Any:
    """Qwen3-VL of a few hundred thousand random weights, byte vocabulary."""
    from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

    text = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "intermediate_size": 2 * hidden,
        "num_hidden_layers": layers, "num_attention_heads": 4, "num_key_value_heads": 2,
        "head_dim": 16, "max_position_embeddings": 4096, "pad_token_id": 0,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5e6, "mrope_section": [4, 2, 2],
            "mrope_interleaved": True,
        },
    }  # fmt: skip
    vision = {
        "depth": depth, "hidden_size": hidden, "intermediate_size": 2 * hidden, "num_heads": 4,
        "out_hidden_size": hidden, "patch_size": 16, "spatial_merge_size": 2,
        "temporal_patch_size": 2, "num_position_embeddings": 2304,
        "deepstack_visual_indexes": list(range(depth))[:2],
    }  # fmt: skip
    config = Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=IMAGE_TOKEN,
        video_token_id=VIDEO_TOKEN, vision_start_token_id=VISION_START,
        vision_end_token_id=VISION_END, tie_word_embeddings=True,
    )  # fmt: skip
    torch.manual_seed(0)
    return Qwen3VLForConditionalGeneration(config)


def patches(image: Image.Image, width: int, height: int) -> tuple[Tensor, Tensor]:
    """Image → (patches, 1536) in 2 × 2 order and its grid (1, rows, columns)."""
    small = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(small, dtype=np.float32).transpose(2, 0, 1) / 127.5 - 1.0
    rows, columns = height // 16, width // 16
    tiles = np.stack([pixels, pixels]).reshape(2, 3, rows // 2, 2, 16, columns // 2, 2, 16)
    tiles = tiles.transpose(2, 5, 3, 6, 1, 0, 4, 7)
    flat = np.ascontiguousarray(tiles).reshape(rows * columns, 1536)
    return torch.from_numpy(flat), torch.tensor([1, rows, columns])


def chat(patch_count: int, question: str, answer: str) -> tuple[list[int], list[int]]:
    """One turn with one image → tokens and labels (the question is not scored)."""
    visual = [VISION_START, *[IMAGE_TOKEN] * (patch_count // 4), VISION_END]
    prompt, reply = visual + encode(question), encode(answer)
    return prompt + reply, [-100] * len(prompt) + reply


def pad_chats(samples: list[dict[str, Any]]) -> dict[str, Tensor]:
    """Samples with tokens, labels, patches, grid → the keyword arguments of Qwen3-VL."""
    longest = max(len(s["tokens"]) for s in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    labels = torch.full((len(samples), longest), -100)
    mask = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        size = len(sample["tokens"])
        ids[row, :size] = torch.tensor(sample["tokens"])
        labels[row, :size] = torch.tensor(sample["labels"])
        mask[row, :size] = 1
    return {
        "input_ids": ids, "labels": labels, "attention_mask": mask,
        "mm_token_type_ids": (ids == IMAGE_TOKEN).int(),
        "pixel_values": torch.cat([s["patches"] for s in samples]),
        "image_grid_thw": torch.stack([s["grid"] for s in samples]),
    }  # fmt: skip
