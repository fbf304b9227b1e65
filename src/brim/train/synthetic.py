"""Rows of random documents with generated pictures: what benchmarks and dry runs train on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
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


def photographs(
    config: ModelConfig, length: int, *, seed: int = 0, bucket: int = 1024, text: int = 300
) -> Iterator[PackedBatch]:
    """Endless rows of photographs of about one megapixel with ``text`` tokens each, half scored.

    Sizes are those of common photographs after resizing: 1,024 visual tokens on average.
    """
    rng = np.random.default_rng(seed)
    sizes = [(64, 64), (48, 64), (64, 48), (60, 80), (72, 56), (64, 96), (42, 56)]
    while True:
        documents: list[Document] = []
        free = length
        for grid in rng.permutation(np.array(sizes).repeat(8, axis=0)).tolist():
            tokens = grid[0] * grid[1] // 4 + 2 + text
            if tokens > free:
                break
            documents.append(
                document(
                    rng,
                    [tuple(grid)],
                    text=text - text // 2,
                    answer=text // 2,
                    vocabulary=config.text.vocab_size,
                )
            )
            free -= tokens
        if free > 64:
            documents.append(
                document(
                    rng, [], text=free - free // 2, answer=free // 2,
                    vocabulary=config.text.vocab_size,
                )
            )  # fmt: skip
        yield pack(documents, length, bucket=bucket, side=config.vision.grid_side)
