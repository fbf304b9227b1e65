"""All samples of a run in columns: lengths and costs under the run's settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.data.columns import Columns, Scan
from brim.data.config import Overlong
from brim.data.cost import Cost, Numbers
from brim.data.geometry import Vision, smart_resize_many, video_grid
from brim.errors import InputError

Ints = NDArray[np.int64]
Column = NDArray[np.integer[Any]]


@dataclass(slots=True)
class Samples:
    """The samples that a plan deals out; position in these columns is a sample's id."""

    source: Ints
    record: Ints
    length: Ints
    """Tokens, visual ones included, after the policy for overlong samples."""
    scored: Ints
    """Learnt tokens; an upper bound where a text is cut."""
    images: Ints
    patches: Ints
    patch_squares: Ints
    """Σ patches² over the frames."""
    max_pixels: Ints
    """The sample's own limit for its pictures (policy "shrink"; see limited); 0: the run's."""
    cost: Numbers
    overlong: Counter[str] = field(default_factory=Counter)
    """Samples longer than a row, by what became of them."""

    def __len__(self) -> int:
        return len(self.length)


@dataclass(slots=True)
class _Pictures:
    """Visual tokens and patches of each picture, under one limit of pixels."""

    tokens: Ints
    patches: Ints
    squares: Ints


def gather(
    scans: Sequence[Scan],
    vision: Vision,
    cost: Cost,
    *,
    tokens_per_row: int,
    overlong: Overlong,
) -> Samples:
    """The samples of all scans.  Raises InputError when none is left."""
    parts = [
        _of_scan(number, found.columns, vision, cost, tokens_per_row, overlong)
        for number, found in enumerate(scans)
    ]
    names = [f.name for f in fields(Samples) if f.name != "overlong"]
    joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    counts: Counter[str] = Counter()
    for part in parts:
        counts += part.overlong
    if not len(joined["length"]):
        raise InputError(
            "no sample is left to train on",
            hint="the quarantine file lists what was refused; brim plan shows the counts",
        )
    return Samples(**joined, overlong=counts)


def _of_scan(
    source: int, columns: Columns, vision: Vision, cost: Cost, limit: int, overlong: Overlong
) -> Samples:
    owner = np.repeat(np.arange(len(columns.record)), columns.pictures)
    pictures = _pictures(columns.height, columns.width, columns.frames, vision)
    count = len(columns.record)

    def per_sample(values: Ints) -> Ints:
        return np.bincount(owner, values, count).astype(np.int64)

    visual = per_sample(pictures.tokens)
    patches, squares = per_sample(pictures.patches), per_sample(pictures.squares)
    length = columns.text + visual
    max_pixels = np.zeros(count, np.int64)
    long = np.flatnonzero(length > limit)
    fate: Counter[str] = Counter()
    keep = np.ones(count, np.bool_)
    starts = np.concatenate([[0], np.cumsum(columns.pictures)])
    for k in long.tolist():
        what = "dropped"
        if overlong == "shrink" and (
            found := _shrunk(columns, vision, k, int(starts[k]), limit - int(columns.text[k]))
        ):
            max_pixels[k], visual[k], patches[k], squares[k] = found
            length[k] = columns.text[k] + visual[k]
            what = "pictures shrunk"
        elif overlong != "drop" and _can_cut(columns, k, int(length[k]), limit):
            length[k], what = limit, "text cut"
        keep[k] = what != "dropped"
        fate[what] += 1
    samples = Samples(
        source=np.full(count, source, np.int64),
        record=columns.record,
        length=length,
        scored=np.minimum(columns.scored, length).astype(np.int64),
        images=columns.pictures.astype(np.int64),
        patches=patches,
        patch_squares=squares,
        max_pixels=max_pixels,
        cost=cost.of(length, length**2, columns.scored.astype(np.int64), patches, squares),
        overlong=fate,
    )
    names = [f.name for f in fields(Samples) if f.name != "overlong"]
    return Samples(**{n: getattr(samples, n)[keep] for n in names}, overlong=fate)


def _pictures(heights: Column, widths: Column, frames: Column, vision: Vision) -> _Pictures:
    h, w = smart_resize_many(heights.astype(np.int64), widths.astype(np.int64), vision)
    in_frame = (h // vision.patch) * (w // vision.patch)
    times = np.ones(len(h), np.int64)
    for k in np.flatnonzero(frames).tolist():
        grid = video_grid(int(frames[k]), int(heights[k]), int(widths[k]), vision)
        in_frame[k], times[k] = grid.h * grid.w, grid.t
    return _Pictures(in_frame // vision.merge**2 * times, in_frame * times, in_frame**2 * times)


def _shrunk(
    columns: Columns, vision: Vision, sample: int, first: int, room: int
) -> tuple[int, int, int, int] | None:
    """(pixel limit, visual tokens, patches, Σ patches²) with which the sample fits.

    The largest one limit for all pictures of the sample, found by bisection over visual tokens per
    picture.  None where the text alone is too long, or the smallest pictures still are.
    """
    last = first + int(columns.pictures[sample])
    if last == first:
        return None
    here = slice(first, last)
    sizes = columns.height[here], columns.width[here], columns.frames[here]

    def under(limit: int) -> _Pictures:
        return _pictures(*sizes, limited(vision, limit * vision.factor**2))

    largest = max(vision.max_pixels, vision.video_max_pixels // vision.temporal)
    low, high = 1, max(1, largest // vision.factor**2)
    if under(low).tokens.sum() > room:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if under(middle).tokens.sum() <= room else (low, middle)
    found = under(low)
    tokens, patches, squares = (
        int(column.sum()) for column in (found.tokens, found.patches, found.squares)
    )
    return low * vision.factor**2, tokens, patches, squares


def limited(vision: Vision, max_pixels: int) -> Vision:
    """The geometry with a sample's own limit; 0: unchanged.

    A video may have as many visual tokens as an image of ``max_pixels``, all its frames together.
    """
    if not max_pixels:
        return vision
    largest, video = min(vision.max_pixels, max_pixels), vision.temporal * max_pixels
    return replace(
        vision,
        min_pixels=min(vision.min_pixels, largest),
        max_pixels=largest,
        video_min_pixels=min(vision.video_min_pixels, video),
        video_max_pixels=min(vision.video_max_pixels, video),
    )


def _can_cut(columns: Columns, sample: int, length: int, limit: int) -> bool:
    """Can the text be cut at ``limit`` without cutting a picture, and still teach something?"""
    room = limit - (length - int(columns.tail[sample]))
    return room > int(columns.tail_scored[sample])
