"""Rows of random documents with generated pictures: what benchmarks and dry runs train on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from brim.model.batch import PackedBatch, RowCounts
from brim.model.config import ModelConfig
from brim.model.geometry import boundaries, document_positions, vision_arrays


class Tokens(NamedTuple):
    """Ids of the tokens around and in place of pictures."""

    image_pad: int = 151_655
    video_pad: int = 151_656
    start: int = 151_652
    end: int = 151_653


PUBLISHED = Tokens()


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the tower, (height, width) in patches; a video's holds two camera frames."""

    height: int
    width: int
    pixels: NDArray[np.uint8]
    """(height · width, C), or (height · width, 2 · C) for a video."""
    video: bool = False

    @property
    def tokens(self) -> int:
        return self.height * self.width // 4


@dataclass(frozen=True, slots=True)
class Document:
    """Text runs and frames in order; ``scored[i]`` says that token i is a label."""

    parts: tuple[NDArray[np.int64] | Frame, ...]
    scored: NDArray[np.bool_]
    tokens: Tokens = PUBLISHED

    @property
    def frames(self) -> list[Frame]:
        return [part for part in self.parts if isinstance(part, Frame)]

    @property
    def ids(self) -> NDArray[np.int64]:
        """Token ids; visual places hold the pad token of their kind."""
        image, video = self.tokens.image_pad, self.tokens.video_pad
        return np.concatenate(
            [
                np.full(p.tokens, video if p.video else image) if isinstance(p, Frame) else p
                for p in self.parts
            ]
        )

    @property
    def positions(self) -> NDArray[np.int32]:
        return document_positions(
            [(p.height, p.width) if isinstance(p, Frame) else len(p) for p in self.parts]
        )

    def __len__(self) -> int:
        return len(self.scored)


def pack(
    documents: Sequence[Document], length: int, *, bucket: int = 4, side: int = 48
) -> PackedBatch:
    """The documents as one row of ``length`` tokens; see :mod:`brim.model.batch` for its fields."""
    tokens = documents[0].tokens
    sizes = [len(d) for d in documents]
    padding = length - sum(sizes)
    assert padding >= 0, f"{sum(sizes)} tokens do not fit in a row of {length}"
    starts = np.cumsum([0, *sizes[:-1]])
    ids = np.concatenate([*(d.ids for d in documents), np.zeros(padding, np.int64)])
    labels = np.concatenate(
        [start + np.flatnonzero(d.scored) for start, d in zip(starts, documents, strict=True)]
    )
    frames = [frame for d in documents for frame in d.frames]
    ordered = [f for f in frames if not f.video] + [f for f in frames if f.video]
    grids = [(f.height, f.width) for f in ordered]
    segments = [*sizes, *([padding] if padding else [])]
    vision = vision_arrays(grids, bucket=bucket, side=side)
    row: dict[str, Any] = {
        "input_ids": ids,
        "position_ids": np.concatenate(
            [*(d.positions for d in documents), np.zeros((3, padding), np.int32)], axis=1
        ),
        "cu_seqlens": boundaries(segments),
        "scored_rows": labels - 1,
        "labels": ids[labels],
        "patches": _pixels(frames, video=False),
        "video_patches": _pixels(frames, video=True),
        "splice_rows": np.concatenate(
            [np.flatnonzero(ids == p) for p in (tokens.image_pad, tokens.video_pad)]
        ),
        **vision,
    }
    patches = [h * w for h, w in grids]
    row["counts"] = RowCounts(
        tokens=sum(sizes),
        scored=len(labels),
        patches=sum(patches),
        images=len(frames),
        frames=len(frames),
        documents=len(documents),
        token_squares=sum(n * n for n in sizes),
        patch_squares=sum(n * n for n in patches),
        longest_document=max(segments),
        longest_frame=int(np.diff(vision["vision_cu_seqlens"]).max(initial=0)),
    )
    return PackedBatch.from_arrays(row)


def _pixels(frames: Sequence[Frame], *, video: bool) -> NDArray[np.uint8]:
    width = 1536 if video else 768
    chosen = [f.pixels for f in frames if f.video == video]
    return np.concatenate([np.zeros((0, width), np.uint8), *chosen])


def padded(documents: Sequence[Document]) -> dict[str, torch.Tensor]:
    """The documents as transformers' processor batches them: right-padded, labels -100 elsewhere.

    Stills only.  Shapes: ids, labels, mask and kinds (documents, longest); pixels (patches, 1536).
    """
    width = max(len(d) for d in documents)
    shape = (len(documents), width)
    ids, labels = torch.zeros(shape, dtype=torch.long), torch.full(shape, -100)
    mask, kinds = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.int)
    for i, d in enumerate(documents):
        tokens, scored = torch.from_numpy(d.ids), torch.from_numpy(d.scored)
        ids[i, : len(d)], mask[i, : len(d)] = tokens, 1
        labels[i, : len(d)][scored] = tokens[scored]
        kinds[i, : len(d)] = (tokens == d.tokens.image_pad).int()
    frames = [f for d in documents for f in d.frames]
    batch = {
        "input_ids": ids,
        "labels": labels,
        "attention_mask": mask,
        "mm_token_type_ids": kinds,
    }
    if not frames:
        return batch
    still = np.concatenate([f.pixels for f in frames]).astype(np.float32).reshape(-1, 3, 1, 256)
    doubled = np.repeat(still, 2, axis=2).reshape(-1, 1536)  # the processor shows a still twice
    grid = torch.tensor([(1, f.height, f.width) for f in frames])
    return batch | {"pixel_values": torch.from_numpy(doubled) / 127.5 - 1, "image_grid_thw": grid}


def document(
    rng: np.random.Generator,
    grids: Sequence[tuple[int, int]],
    *,
    text: int,
    answer: int,
    vocabulary: int,
    video: bool = False,
    tokens: Tokens = PUBLISHED,
) -> Document:
    """A question of ``text`` random tokens after its pictures, and a scored answer."""
    words = min(vocabulary, *tokens)
    parts: list[NDArray[np.int64] | Frame] = []
    for height, width in grids:
        values = 1536 if video else 768
        pixels = rng.integers(0, 256, (height * width, values), dtype=np.uint8)
        start, end = (np.array([t]) for t in (tokens.start, tokens.end))
        parts += [start, Frame(height, width, pixels, video), end]
    parts.append(rng.integers(0, words, text + answer))
    length = sum(p.tokens if isinstance(p, Frame) else len(p) for p in parts)
    scored = np.zeros(length, bool)
    scored[length - answer :] = True
    return Document(tuple(parts), scored, tokens)


PHOTOGRAPHS = ((64, 64), (48, 64), (64, 48), (60, 80), (72, 56), (64, 96), (42, 56))
"""(height, width) in patches of common photographs after resizing; 1,024 visual tokens a picture
on average."""


def photograph_documents(
    config: ModelConfig, length: int, *, seed: int = 0, text: int = 300
) -> list[Document]:
    """As many photographs with ``text`` tokens each, half of them scored, as fill ``length``; a
    text-only document takes what is left."""
    rng = np.random.default_rng(seed)
    words = config.text.vocab_size
    found: list[Document] = []
    free = length
    while True:
        height, width = PHOTOGRAPHS[rng.integers(len(PHOTOGRAPHS))]
        if height * width // 4 + 2 + text > free:
            break
        found.append(
            document(
                rng, [(height, width)], text=text - text // 2, answer=text // 2, vocabulary=words
            )
        )
        free -= len(found[-1])
    if free > 64:
        found.append(document(rng, [], text=free - free // 2, answer=free // 2, vocabulary=words))
    return found


def photographs(
    config: ModelConfig, length: int, *, seed: int = 0, bucket: int = 1024, text: int = 300
) -> Iterator[PackedBatch]:
    """Endless rows of :func:`photograph_documents`."""
    for number in itertools.count(1000 * seed):
        documents = photograph_documents(config, length, seed=number, text=text)
        yield pack(documents, length, bucket=bucket, side=config.vision.grid_side)
