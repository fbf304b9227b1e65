"""Bytes of an image file to RGB pixels, by one stated policy.

==============  =======================================================================
EXIF            rotated upright (as ``transformers.image_utils.load_image`` does)
alpha, tRNS     composited on white, as the reference processor does
CMYK, YCCK      Pillow's conversion
palette, grey   to RGB
16-bit grey     the upper 8 bits; the reference clips at 255, which turns them white
animated        the first frame
damaged         refused, also where a lenient decoder returns a half-grey picture
too large       refused from the header, before any pixel is decoded
==============  =======================================================================

JPEGs go through libjpeg-turbo (bit-equal to Pillow, which uses it too), the rest through Pillow.
"""

from __future__ import annotations

import io
import re
from dataclasses import dataclass

import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from brim.data.header import FORMATS, Header, read_header
from brim.data.quarantine import BadSample

Pixels = NDArray[np.uint8]

# What libjpeg warns of though no pixel depends on it (extra bytes between the last block and the
# end marker, an unknown JFIF revision, a colour profile that nobody applies), and sampling layouts
# that TurboJPEG lacks: for these Pillow has the last word.
_HARMLESS = re.compile(
    r"extraneous bytes before marker 0xd9|JFIF revision|Adobe color transform|bad ICC marker"
    r"|subsampling level"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodePolicy:
    """The choices; each default is the exact one."""

    max_file_pixels: int = 40_000_000
    """Refuse an image whose header says more pixels than this."""
    rotate: bool = True
    """Apply the EXIF orientation; False reads pixels as stored."""
    dct_scaling: bool = False
    """Let libjpeg shrink by 2, 4 or 8 while decoding when the target is smaller by that much:
    faster on large photographs, mean error 0.4 of a grey level (a power of two is exact only
    when nothing is resized afterwards)."""


EXACT = DecodePolicy()


def decode(
    data: bytes | memoryview,
    policy: DecodePolicy = EXACT,
    *,
    target: tuple[int, int] | None = None,
) -> Pixels:
    """RGB pixels [height, width, 3], upright.

    ``target`` is the upright (height, width) that the caller will resize to; it matters only with
    ``policy.dct_scaling``.  Raises BadSample and nothing else for any bytes.
    """
    header = read_header(data)
    check_size(header, policy)
    if target is not None and policy.rotate and header.orientation >= 5:
        target = target[1], target[0]
    try:
        if header.format == "JPEG" and header.channels in (1, 3):
            pixels = _decode_jpeg(data, target if policy.dct_scaling else None)
        else:
            pixels = _decode_pillow(data)
    except BadSample:
        raise
    except Exception as error:  # every decoder has its own zoo of exceptions
        raise BadSample("image.undecodable", f"{type(error).__name__}: {error}") from None
    return _upright(pixels, header.orientation) if policy.rotate else pixels


def check_size(header: Header, policy: DecodePolicy) -> None:
    """Refuse from the header what would take too much memory."""
    if header.width * header.height > policy.max_file_pixels:
        raise BadSample(
            "image.too-large",
            f"{header.width}×{header.height} pixels; the limit is "
            f"{policy.max_file_pixels / 1e6:g} million",
        )


def _decode_jpeg(data: bytes | memoryview, target: tuple[int, int] | None) -> Pixels:
    height, width = target or (0, 0)
    factor = 2.0 if target else 1.0
    scaled = {"min_height": height, "min_width": width, "min_factor": factor} if target else {}
    try:
        pixels: Pixels = simplejpeg.decode_jpeg(data, colorspace="RGB", strict=True, **scaled)
    except ValueError as error:
        if _HARMLESS.search(str(error)):
            return _decode_pillow(data)
        raise BadSample("image.damaged", f"JPEG: {error}") from None
    return pixels


def _decode_pillow(data: bytes | memoryview) -> Pixels:
    with Image.open(io.BytesIO(data), formats=FORMATS) as image:
        image.load()
        if image.mode in ("I", "F") or image.mode.startswith("I;16"):
            return _grey16(image)
        # the reference's rule (transformers.image_transforms.convert_to_rgb)
        if "A" in image.getbands() or image.info.get("transparency") is not None:
            upper = image.convert("RGBA")
            white = Image.new("RGBA", image.size, (255, 255, 255, 255))
            return np.array(Image.alpha_composite(white, upper).convert("RGB"))
        return np.array(image.convert("RGB"))


def _grey16(image: Image.Image) -> Pixels:
    values = np.asarray(image)
    if image.mode == "F" or (values.size and (values.min() < 0 or values.max() > 0xFFFF)):
        raise BadSample("image.mode", f"pixels of mode {image.mode} have no defined white")
    grey = (values.astype(np.uint16) >> 8).astype(np.uint8)
    return np.repeat(grey[:, :, None], 3, axis=2)


def _upright(pixels: Pixels, orientation: int) -> Pixels:
    """The eight EXIF orientations (EXIF 2.3, tag 0x0112) undone; a copy only where needed."""
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = pixels.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return np.ascontiguousarray(pixels)
