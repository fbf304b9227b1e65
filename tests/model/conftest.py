"""A tiny random Qwen3-VL of transformers beside ours, and samples for both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from brim.model.qwen3vl import Kernels, Qwen3VL
from brim.model.weights import load, slots
from brim.train.synthetic import PUBLISHED, Document, document

# the visual tokens' ids end the vocabulary, as in the published models
VOCABULARY = 151_660
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "rms_norm_eps": 1e-6,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 5e6, "mrope_interleaved": True,
        "mrope_section": [3, 3, 2],
    },
}  # fmt: skip
VISION = {
    "depth": 4, "hidden_size": 16, "intermediate_size": 20, "num_heads": 2, "out_hidden_size": 24,
    "num_position_embeddings": 36, "deepstack_visual_indexes": [0, 2, 3],
}  # fmt: skip


@dataclass
class Pair:
    """The same random weights in transformers and in brim."""

    theirs: Any
    ours: Qwen3VL
    folder: Path

    def their_batch(self, documents: Sequence[Document]) -> dict[str, torch.Tensor]:
        """The documents as a right-padded batch."""
        width = max(len(d) for d in documents)
        shape = (len(documents), width)
        ids, labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
        mask, kinds = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.int)
        for i, d in enumerate(documents):
            tokens, scored = torch.from_numpy(d.ids), torch.from_numpy(d.scored)
            ids[i, : len(d)], mask[i, : len(d)] = tokens, 1
            labels[i, : len(d)][scored] = tokens[scored]
            kinds[i, : len(d)] = (tokens == PUBLISHED.image_pad).int() + 2 * (
                tokens == PUBLISHED.video_pad
            ).int()
        batch = {
            "input_ids": ids,
            "labels": labels,
            "attention_mask": mask,
            "mm_token_type_ids": kinds,
        }
        return batch | _pixels(documents, video=False) | _pixels(documents, video=True)

    def their_gradients(self) -> dict[str, torch.Tensor]:
        """Gradients under the published names, tied weights once."""
        return {
            n: torch.zeros_like(p) if p.grad is None else p.grad
            for n, p in self.theirs.named_parameters()
        }

    def our_gradients(self) -> dict[str, torch.Tensor]:
        """Ours, cut into the published tensors."""
        parameters = dict(self.ours.named_parameters())
        found = {}
        for name, slot in slots(self.ours.config).items():
            parameter = parameters[slot.parameter]
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found[name] = slot.of(grad)
        return found


def _pixels(documents: Sequence[Document], *, video: bool) -> dict[str, torch.Tensor]:
    frames = [f for d in documents for f in d.frames if f.video == video]
    if not frames:
        return {}
    values = np.concatenate([f.pixels for f in frames]).astype(np.float32)
    if not video:  # the processor shows a still image twice
        still = values.reshape(-1, 3, 1, 256)
        values = np.repeat(still, 2, axis=2).reshape(-1, 1536)
    suffix = "_videos" if video else ""
    grid = torch.tensor([(1, f.height, f.width) for f in frames])
    normalised = torch.from_numpy(values) / 127.5 - 1
    return {f"pixel_values{suffix}": normalised, f"{'video' if video else 'image'}_grid_thw": grid}


@pytest.fixture(scope="session")
def make_pair(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pair]:
    """(tied, dtype, **vision overrides) → the two models, made once for each combination."""
    made: dict[Any, Pair] = {}

    def make(
        tied: bool = True,
        dtype: torch.dtype = torch.float32,
        kernels: Kernels | None = None,
        **vision: Any,
    ) -> Pair:
        key = (tied, dtype, kernels, tuple(sorted((k, tuple(v)) for k, v in vision.items())))
        if key not in made:
            torch.manual_seed(0)
            config = Qwen3VLConfig(
                text_config=TEXT | {"tie_word_embeddings": tied},
                vision_config=VISION | vision,
                tie_word_embeddings=tied,
            )
            theirs = Qwen3VLForConditionalGeneration(config)
            with torch.no_grad():
                for parameter in theirs.parameters():  # biases too, and norms away from 1
                    parameter.add_(torch.randn_like(parameter) * 0.1)
            folder = tmp_path_factory.mktemp("model")
            theirs.to(dtype).save_pretrained(folder)
            theirs.config._attn_implementation = "sdpa"
            ours = load(folder, dtype=dtype, kernels=kernels)
            made[key] = Pair(theirs, ours, folder)
        pair = made[key]
        pair.theirs.zero_grad()
        pair.ours.zero_grad()
        return pair

    return make


@pytest.fixture
def samples() -> dict[str, list[Document]]:
    """Documents of every kind that a row may hold."""
    rng = np.random.default_rng(0)

    def one(grids: list[tuple[int, int]], text: int, answer: int, video: bool = False) -> Document:
        return document(rng, grids, text=text, answer=answer, vocabulary=VOCABULARY, video=video)

    return {
        "text only": [one([], 5, 4), one([], 9, 3)],
        "one image": [one([(4, 6)], 5, 4)],
        "several images": [one([(4, 6), (2, 2), (8, 4)], 5, 4), one([(6, 6)], 2, 7)],
        "video": [one([(4, 4), (4, 4), (4, 4)], 3, 5, video=True)],
        "mixed": [
            one([(4, 6)], 5, 4),
            one([], 11, 6),
            one([(4, 4), (4, 4)], 3, 5, video=True),
            one([(2, 4), (6, 2)], 1, 1),
        ],
    }
