"""How large Qwen3-VL sees a picture: sizes after resizing, patches, visual tokens.

Pure arithmetic on header sizes; nothing here touches a pixel.  The formulas are those of the
transformers processors (``Qwen2VLImageProcessor`` and ``Qwen3VLVideoProcessor``), so a plan made
from headers alone counts exactly the tokens that the model will see.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from brim.data.quarantine import BadSample
from brim.errors import ConfigError

MAX_ASPECT = 200
"""Beyond this ratio of sides the reference processors refuse an image."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Vision:
    """The tower's geometry and the pixel limits of the processor; defaults are Qwen3-VL's."""

    patch: int = 16
    merge: int = 2
    temporal: int = 2
    min_pixels: int = 65_536
    """Smallest area of an image after resizing, in pixels."""
    max_pixels: int = 16_777_216
    """Largest area of an image after resizing, in pixels."""
    video_min_pixels: int = 4_096
    """Smallest frames × height × width of a video after resizing."""
    video_max_pixels: int = 25_165_824
    """Largest frames × height × width of a video after resizing."""

    def __post_init__(self) -> None:
        if self.min_pixels > self.max_pixels:
            raise ConfigError(
                f"data.min_pixels is {self.min_pixels}, above data.max_pixels {self.max_pixels}"
            )
        if self.video_min_pixels > self.video_max_pixels:
            raise ConfigError(
                f"data.video_min_pixels is {self.video_min_pixels}, above data.video_max_pixels "
                f"{self.video_max_pixels}"
            )
        if self.max_pixels < self.factor**2:
            raise ConfigError(
                f"data.max_pixels is {self.max_pixels}; "
                f"one visual token alone takes {self.factor**2} pixels"
            )

    @property
    def factor(self) -> int:
        """Sides are multiples of this: 32 pixels, one visual token."""
        return self.patch * self.merge

    @classmethod
    def of_processor(cls, config: Mapping[str, Any], **limits: int) -> Vision:
        """From a model's ``preprocessor_config.json``; ``limits`` override."""
        size = config.get("size") or {}
        found = {
            "patch": config.get("patch_size"),
            "merge": config.get("merge_size"),
            "temporal": config.get("temporal_patch_size"),
            "min_pixels": config.get("min_pixels", size.get("shortest_edge")),
            "max_pixels": config.get("max_pixels", size.get("longest_edge")),
        }
        return cls(**{**{k: v for k, v in found.items() if v is not None}, **limits})


@dataclass(frozen=True, slots=True)
class Grid:
    """Patches of one picture: frames over time (1 for an image), rows, columns."""

    t: int
    h: int
    w: int

    @property
    def patches(self) -> int:
        return self.t * self.h * self.w

    def tokens(self, merge: int) -> int:
        """Visual tokens after the merger."""
        return self.patches // merge**2


def smart_resize(height: int, width: int, vision: Vision) -> tuple[int, int]:
    """(height, width) to which the reference processor resizes an image.

    Sides become multiples of ``vision.factor`` (rounded half to even, as Python rounds); an area
    outside the limits is scaled in, rounding down above and up below.  Raises BadSample for an
    aspect ratio above 200.
    """
    check_aspect(height, width)
    factor = vision.factor
    h, w = round(height / factor) * factor, round(width / factor) * factor
    if h * w > vision.max_pixels:
        scale = math.sqrt(height * width / vision.max_pixels)
        h = max(factor, math.floor(height / scale / factor) * factor)
        w = max(factor, math.floor(width / scale / factor) * factor)
    elif h * w < vision.min_pixels:
        scale = math.sqrt(vision.min_pixels / (height * width))
        h = math.ceil(height * scale / factor) * factor
        w = math.ceil(width * scale / factor) * factor
    return h, w


def smart_resize_many(
    heights: NDArray[np.int64], widths: NDArray[np.int64], vision: Vision
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """``smart_resize`` of many images at once; the caller has sorted out bad aspect ratios."""
    factor = vision.factor
    area = heights * widths
    h = np.rint(heights / factor).astype(np.int64) * factor
    w = np.rint(widths / factor).astype(np.int64) * factor
    big, small = h * w > vision.max_pixels, h * w < vision.min_pixels
    down = np.sqrt(area / vision.max_pixels)
    up = np.sqrt(vision.min_pixels / np.maximum(area, 1))
    for out, side in ((h, heights), (w, widths)):
        shrunk = np.maximum(factor, np.floor(side / down / factor).astype(np.int64) * factor)
        grown = np.ceil(side * up / factor).astype(np.int64) * factor
        np.copyto(out, shrunk, where=big)
        np.copyto(out, grown, where=small & ~big)
    return h, w


def smart_resize_video(frames: int, height: int, width: int, vision: Vision) -> tuple[int, int]:
    """(height, width) to which the reference resizes each frame of a video.

    The limits hold for frames × height × width.  Raises BadSample below ``vision.temporal``
    frames and for an aspect ratio above 200.
    """
    if frames < vision.temporal:
        raise BadSample("video.too-short", f"a video of {frames} frames; at least 2 are needed")
    factor = vision.factor
    if height < factor or width < factor:
        scale = max(factor / height, factor / width)
        height, width = int(height * scale), int(width * scale)
    check_aspect(height, width)
    h, w = round(height / factor) * factor, round(width / factor) * factor
    t = round(frames / vision.temporal) * vision.temporal
    if t * h * w > vision.video_max_pixels:
        scale = math.sqrt(frames * height * width / vision.video_max_pixels)
        h = max(factor, math.floor(height / scale / factor) * factor)
        w = max(factor, math.floor(width / scale / factor) * factor)
    elif t * h * w < vision.video_min_pixels:
        scale = math.sqrt(vision.video_min_pixels / (frames * height * width))
        h = math.ceil(height * scale / factor) * factor
        w = math.ceil(width * scale / factor) * factor
    return h, w


def image_grid(height: int, width: int, vision: Vision) -> Grid:
    """Patches of an image whose upright size in its file is height × width."""
    h, w = smart_resize(height, width, vision)
    return Grid(1, h // vision.patch, w // vision.patch)


def video_grid(frames: int, height: int, width: int, vision: Vision) -> Grid:
    """Patches of a video of ``frames`` sampled frames; an odd last frame is doubled."""
    h, w = smart_resize_video(frames, height, width, vision)
    return Grid(-(-frames // vision.temporal), h // vision.patch, w // vision.patch)


def check_aspect(height: int, width: int) -> None:
    """Raise BadSample for sides that the reference processors refuse."""
    if height < 1 or width < 1:
        raise BadSample("image.empty", f"an image of {width}×{height} pixels")
    if max(height, width) > MAX_ASPECT * min(height, width):
        raise BadSample(
            "image.aspect", f"{width}×{height} pixels: the sides' ratio is above {MAX_ASPECT}"
        )
