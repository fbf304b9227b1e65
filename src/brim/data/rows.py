"""One packed row: from the samples that a plan names to the arrays that a step takes.

The names, shapes and types are those of ``brim.model.batch.PackedBatch``; its legend:
L tokens of a row, S scored rows, A patches of stills, B patches of videos, P = A + B + padding.

Pictures are laid down as patches, or whole, to be cut on the device: a copy instead of a
transposition, 0.2 ms a megapixel instead of 1.2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from brim.data.decode import Pixels
from brim.data.geometry import Grid, Vision
from brim.data.indices import (
    boundaries,
    document_positions,
    interpolation,
    padded,
    patch_positions,
    write_patches,
    write_video_patches,
)
from brim.data.tokens import ChatTokens, Encoded

Allocate = Callable[[str, tuple[int, ...], Any], NDArray[Any]]
"""(name, shape, dtype) → an array to fill: fresh memory, or a place in a shared slot."""


class Form(NamedTuple):
    """Names of the arrays that hold one kind of picture."""

    pixels: str
    """uint8 [bytes]: whole pictures, one after the other …"""
    table: str
    """… and where each frame lies, int64 [n, 8] as :mod:`brim.data.pixels` tells."""
    patches: str
    """uint8 [patches, values]: the same, cut."""


STILLS = Form("pixels", "stills", "patches")
CLIPS = Form("clip_pixels", "clips", "video_patches")


class Counts(msgspec.Struct, frozen=True):
    """What the host knows about a row without reading the device; padding is counted nowhere but
    in the two longest segments."""

    tokens: int
    scored: int
    patches: int
    images: int
    frames: int
    documents: int
    token_squares: int
    patch_squares: int
    longest_document: int
    longest_frame: int


@dataclass(frozen=True, slots=True)
class Picture:
    """One image (one array) or the frames of one video, resized; uint8 [height, width, 3]."""

    frames: tuple[Pixels, ...]
    video: bool
    grid: Grid

    @property
    def steps(self) -> list[Grid]:
        """The grid of each temporal patch, which the tower sees as a frame of its own."""
        return [Grid(1, self.grid.h, self.grid.w)] * self.grid.t


class Document:
    """One sample, ready to be laid into a row.

    ``length`` cuts its text at the end; no visual token may lie behind it.
    """

    __slots__ = ("frames", "ids", "pictures", "positions", "sample", "scored", "visual")

    def __init__(
        self,
        sample: int,
        encoded: Encoded,
        pictures: Sequence[Picture],
        tokens: ChatTokens,
        merge: int,
        length: int | None = None,
    ) -> None:
        self.sample = sample
        self.pictures = tuple(pictures)
        self.frames = [(p.video, grid) for p in pictures for grid in p.steps]
        assert len(self.frames) == len(encoded.blocks), "a picture and its places differ"
        parts: list[int | Grid] = []
        ids, scored, at = [], [], 0
        for (place, _), (video, grid) in zip(encoded.blocks, self.frames, strict=True):
            count = grid.tokens(merge)
            ids += [encoded.ids[at:place], np.full(count, tokens.pad(video), np.int32)]
            scored += [encoded.scored[at:place], np.zeros(count, np.bool_)]
            parts += [place - at, grid]
            at = place
        ids.append(encoded.ids[at:])
        scored.append(encoded.scored[at:])
        parts.append(len(encoded.ids) - at)
        self.ids = np.concatenate(ids)[:length]
        self.scored = np.concatenate(scored)[:length]
        self.positions = document_positions(parts, merge)[:, :length]
        visual = np.flatnonzero((self.ids == tokens.image_pad) | (self.ids == tokens.video_pad))
        # where each frame's visual tokens lie, frame by frame
        ends = np.cumsum([grid.tokens(merge) for _, grid in self.frames], dtype=np.int64)
        assert len(visual) == (ends[-1] if len(ends) else 0), "a cut through a picture"
        self.visual = np.split(visual, ends[:-1]) if len(ends) else []

    def __len__(self) -> int:
        return len(self.ids)


def assemble(
    documents: Sequence[Document],
    *,
    length: int,
    vision: Vision,
    bucket: int,
    pad: int,
    allocate: Allocate,
    whole: bool = False,
) -> Counts:
    """Lay ``documents`` into one row of ``length`` tokens; ``pad`` fills what is left.

    The arrays come from ``allocate``.  ``bucket``: the vision rows are padded to a multiple of it.
    ``whole``: pictures are not cut into patches.
    """
    sizes = [len(document) for document in documents]
    used = sum(sizes)
    assert used <= length, f"{used} tokens in a row of {length}"
    rest = length - used
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    _text(documents, allocate, length, pad)
    cu_seqlens = boundaries([*sizes, rest] if rest else sizes)
    _put(allocate, "cu_seqlens", cu_seqlens)
    scored = _labels(documents, starts, allocate)
    frames = _frames(documents, starts)
    _pixels(documents, allocate, vision, whole)
    longest_frame = _vision(frames, allocate, vision, bucket)
    patches = [grid.patches for grid, _ in frames]
    return Counts(
        tokens=used,
        scored=scored,
        patches=sum(patches),
        images=sum(len(document.pictures) for document in documents),
        frames=len(frames),
        documents=len(documents),
        token_squares=sum(size**2 for size in sizes),
        patch_squares=sum(n**2 for n in patches),
        longest_document=int(np.diff(cu_seqlens).max()),
        longest_frame=longest_frame,
    )


def _text(documents: Sequence[Document], allocate: Allocate, length: int, pad: int) -> None:
    ids = allocate("input_ids", (length,), np.int64)
    positions = allocate("position_ids", (3, length), np.int32)
    at = 0
    for document in documents:
        ids[at : at + len(document)] = document.ids
        positions[:, at : at + len(document)] = document.positions
        at += len(document)
    ids[at:] = pad
    positions[:, at:] = np.arange(length - at)


def _labels(documents: Sequence[Document], starts: Sequence[int], allocate: Allocate) -> int:
    """A label is a scored token; the row before it predicts it.  A document's first token is the
    start of a turn and never scored, so no document predicts the next one's."""
    places = [np.flatnonzero(d.scored) for d in documents]
    rows = [place + start - 1 for place, start in zip(places, starts, strict=True)]
    labels = [d.ids[place] for d, place in zip(documents, places, strict=True)]
    count = sum(map(len, rows))
    padded(rows, allocate("scored_rows", (count,), np.int64))
    padded(labels, allocate("labels", (count,), np.int64))
    return count


def _frames(
    documents: Sequence[Document], starts: Sequence[int]
) -> list[tuple[Grid, NDArray[np.int64]]]:
    """(grid, rows of its visual tokens) of each frame: the stills, then the videos' frames."""
    found: tuple[list[Any], list[Any]] = ([], [])
    for document, start in zip(documents, starts, strict=True):
        for (video, grid), places in zip(document.frames, document.visual, strict=True):
            found[video].append((grid, places + start))
    return [*found[0], *found[1]]


def _pixels(documents: Sequence[Document], allocate: Allocate, vision: Vision, whole: bool) -> None:
    pictures = [p for document in documents for p in document.pictures]
    stills = [p for p in pictures if not p.video]
    videos = [p for p in pictures if p.video]
    if whole:
        _lay_whole(stills, STILLS, 1, allocate)
        _lay_whole(videos, CLIPS, vision.temporal, allocate)
        return
    values = 3 * vision.patch**2
    out = allocate(STILLS.patches, (sum(p.grid.patches for p in stills), values), np.uint8)
    at = 0
    for still in stills:
        end = at + still.grid.patches
        write_patches(still.frames[0], out[at:end], vision.patch, vision.merge)
        at = end
    count = sum(p.grid.patches for p in videos)
    out = allocate(CLIPS.patches, (count, values * vision.temporal), np.uint8)
    at = 0
    for video in videos:
        end = at + video.grid.patches
        write_video_patches(video.frames, out[at:end], vision.patch, vision.merge)
        at = end


def _lay_whole(pictures: Sequence[Picture], form: Form, moments: int, allocate: Allocate) -> None:
    """Pictures as they are; an incomplete last temporal patch shows the last frame again."""
    out = allocate(form.pixels, (sum(f.size for p in pictures for f in p.frames),), np.uint8)
    rows: list[tuple[int, ...]] = []
    at = first = 0
    for picture in pictures:
        height, width = picture.grid.h, picture.grid.w
        for number in range(picture.grid.t * moments):
            step, moment = divmod(number, moments)
            if number < len(picture.frames):
                frame = picture.frames[number]
                strides, start = lay(frame, out[at : at + frame.size]), at
                at += frame.size
            place = first + step * height * width
            rows.append((start, place, height, width, *strides, moment))
        first += picture.grid.patches
    allocate(form.table, (len(rows), 8), np.int64)[...] = np.array(rows, np.int64).reshape(-1, 8)


def lay(frame: Pixels, out: NDArray[np.uint8]) -> tuple[int, int, int]:
    """Copy [height, width, 3] in the order that it has in memory, by pixels or by planes; the bytes
    from a pixel to the next row's, the next column's and the next channel's."""
    height, width, channels = frame.shape
    if frame.strides[2] == 1:
        out.reshape(frame.shape)[...] = frame
        return width * channels, channels, 1
    out.reshape(channels, height, width)[...] = frame.transpose(2, 0, 1)
    return width, 1, height * width


def _vision(
    frames: Sequence[tuple[Grid, NDArray[np.int64]]],
    allocate: Allocate,
    vision: Vision,
    bucket: int,
) -> int:
    """The tower's indices; returns its longest segment."""
    grids = [grid for grid, _ in frames]
    lengths = [grid.patches for grid in grids]
    padding = -sum(lengths) % bucket
    rows = sum(lengths) + padding
    segments = [*lengths, padding] if padding else lengths
    _put(allocate, "vision_cu_seqlens", boundaries(segments))
    merge = vision.merge
    padded(
        [patch_positions(g.h, g.w, merge) for g in grids],
        allocate("vision_positions", (rows, 2), np.int32),
    )
    blends = [interpolation(g.h, g.w, merge) for g in grids]
    padded([i for i, _ in blends], allocate("vision_interp_indices", (rows, 4), np.int64))
    padded([w for _, w in blends], allocate("vision_interp_weights", (rows, 4), np.float32))
    places = [rows for _, rows in frames]
    padded(places, allocate("splice_rows", (sum(map(len, places)),), np.int64))
    return max(segments, default=0)


def _put(allocate: Allocate, name: str, values: NDArray[np.int32]) -> None:
    allocate(name, values.shape, values.dtype)[...] = values


def slot_bytes(length: int, vision: Vision, bucket: int, *, videos: bool) -> int:
    """Most bytes that a row of ``length`` tokens can take: all of them visual."""
    patches = length * vision.merge**2 + bucket
    pixels = 3 * vision.patch**2 * (vision.temporal if videos else 1)
    # positions 2 × 4, taps 4 × 8, weights 4 × 4, a line of 64 in the table of frames for the
    # smallest, of 4 patches, at every moment; a token: id, 3 positions, label and row, splice,
    # boundaries of documents and frames
    per_patch = pixels + 8 + 32 + 16 + 16 * (vision.temporal if videos else 1)
    per_token = 8 + 12 + 16 + 8 + 8
    return patches * per_patch + length * per_token + 64 * 16
