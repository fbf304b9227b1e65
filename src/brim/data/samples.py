"""All samples of a run in columns: lengths and costs under the run's settings."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from brim.data.config import Overlong
from brim.data.cost import Cost, Numbers
from brim.data.geometry import Vision, smart_resize_many, video_grid
from brim.data.scan import Columns, Scan
from brim.errors import InputError

Ints = NDArray[np.int64]


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
    """The sample's own limit for its images (policy "shrink"); 0: the run's."""
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
    pictures = _pictures(columns, vision)
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
            what = "images shrunk"
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


def _pictures(columns: Columns, vision: Vision) -> _Pictures:
    h, w = smart_resize_many(
        columns.height.astype(np.int64), columns.width.astype(np.int64), vision
    )
    in_frame = (h // vision.patch) * (w // vision.patch)
    times = np.ones(len(h), np.int64)
    for k in np.flatnonzero(columns.frames).tolist():
        grid = video_grid(
            int(columns.frames[k]), int(columns.height[k]), int(columns.width[k]), vision
        )
        in_frame[k], times[k] = grid.h * grid.w, grid.t
    return _Pictures(in_frame // vision.merge**2 * times, in_frame * times, in_frame**2 * times)


def _shrunk(
    columns: Columns, vision: Vision, sample: int, first: int, room: int
) -> tuple[int, int, int, int] | None:
    """(pixel limit, visual tokens, patches, Σ patches²) with which the sample fits.

    The largest one limit for all images of the sample, found by bisection over visual tokens per
    image.  None where text or videos alone are too long, or the smallest images still are.
    """
    last = first + int(columns.pictures[sample])
    if last == first or columns.frames[first:last].any():
        return None
    heights = columns.height[first:last].astype(np.int64)
    widths = columns.width[first:last].astype(np.int64)

    def visual(limit: int) -> tuple[int, Ints]:
        h, w = smart_resize_many(heights, widths, limited(vision, limit * vision.factor**2))
        patches = (h // vision.patch) * (w // vision.patch)
        return int(patches.sum()) // vision.merge**2, patches

    low, high = 1, max(1, vision.max_pixels // vision.factor**2)
    if visual(low)[0] > room:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if visual(middle)[0] <= room else (low, middle)
    tokens, patches = visual(low)
    return low * vision.factor**2, tokens, int(patches.sum()), int((patches**2).sum())


def limited(vision: Vision, max_pixels: int) -> Vision:
    """The geometry with a sample's own limit of pixels; 0: unchanged."""
    if not max_pixels:
        return vision
    return Vision(
        patch=vision.patch,
        merge=vision.merge,
        temporal=vision.temporal,
        min_pixels=min(vision.min_pixels, max_pixels),
        max_pixels=max_pixels,
        video_min_pixels=vision.video_min_pixels,
        video_max_pixels=vision.video_max_pixels,
    )


def _can_cut(columns: Columns, sample: int, length: int, limit: int) -> bool:
    """Can the text be cut at ``limit`` without cutting a picture, and still teach something?"""
    room = limit - (length - int(columns.tail[sample]))
    return room > int(columns.tail_scored[sample])
