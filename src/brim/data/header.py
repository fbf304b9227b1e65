"""The size of an image from its first bytes, without decoding.

JPEG and PNG, nearly all of a data set, are parsed here in microseconds; whatever looks unusual is
left to Pillow, so this parser never has to guess.  One function serves the plan and the decoder:
what the plan counted is what the decoder makes, orientation included.
"""

from __future__ import annotations

import io
import struct
from dataclasses import dataclass

from PIL import (  # each import registers a format; no other parser is ever loaded
    AvifImagePlugin,
    BmpImagePlugin,
    GifImagePlugin,
    Image,
    JpegImagePlugin,
    PngImagePlugin,
    PpmImagePlugin,
    TiffImagePlugin,
    UnidentifiedImageError,
    WebPImagePlugin,
)

from brim.data.quarantine import BadSample

FORMATS = (
    JpegImagePlugin.JpegImageFile.format,
    PngImagePlugin.PngImageFile.format,
    WebPImagePlugin.WebPImageFile.format,
    GifImagePlugin.GifImageFile.format,
    BmpImagePlugin.BmpImageFile.format,
    TiffImagePlugin.TiffImageFile.format,
    AvifImagePlugin.AvifImageFile.format,
    PpmImagePlugin.PpmImageFile.format,
)
"""The formats that are opened; parsers of exotic ones are where decoders crash.  (A JPEG of several
pictures opens as JPEG and yields its first.)"""

HEAD = 1 << 15
"""Bytes of a file that hold the header of nearly every image; more is read when it does not."""

_ORIENTATION = 0x0112
_JPEG_SIZE = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})


@dataclass(frozen=True, slots=True)
class Header:
    """What the first bytes say.  ``width`` and ``height`` are as stored, before rotation."""

    format: str
    width: int
    height: int
    orientation: int = 1
    """EXIF orientation, 1 to 8; 1 where Pillow rotates by itself (TIFF) or none is given."""
    channels: int | None = None
    """Components of a JPEG; None for other formats."""

    def upright(self, rotate: bool = True) -> tuple[int, int]:
        """(height, width) as the picture is looked at; ``rotate=False`` ignores EXIF."""
        if rotate and self.orientation >= 5:
            return self.width, self.height
        return self.height, self.width


def read_header(data: bytes | memoryview) -> Header:
    """The header of a complete file.  Raises BadSample for what is no image of FORMATS."""
    if not len(data):
        raise BadSample("image.empty-file", "an empty file")
    return fast_header(data) or _pillow_header(data)


def fast_header(data: bytes | memoryview) -> Header | None:
    """The header from the first bytes of a JPEG or PNG; None when it takes Pillow to tell."""
    if data[:2] == b"\xff\xd8":
        return _jpeg(data)
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        return _png(data)
    return None


def _jpeg(data: bytes | memoryview) -> Header | None:
    """Walk the markers up to the frame header (ITU T.81, annex B)."""
    at, orientation, end = 2, 1, len(data)
    while at + 9 < end:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF or 0xD0 <= marker <= 0xD9 or marker in (0x00, 0x01):
            return None
        length = data[at + 2] << 8 | data[at + 3]
        if length < 2:
            return None
        if marker in _JPEG_SIZE:
            height, width = data[at + 5] << 8 | data[at + 6], data[at + 7] << 8 | data[at + 8]
            # height 0 means "told later by a DNL marker"; 12-bit samples are Pillow's to refuse
            if not height or not width or data[at + 4] != 8:
                return None
            return Header("JPEG", width, height, orientation, data[at + 9])
        if marker in (0xE1, 0xE2):
            found = _jpeg_segment(bytes(data[at + 4 : at + 2 + length]), orientation)
            if found is None:
                return None
            orientation = found
        at += 2 + length
    return None


def _jpeg_segment(segment: bytes, orientation: int) -> int | None:
    """The orientation after an APP1 or APP2 segment; None when Pillow must look at the file."""
    if segment.startswith(b"MPF\0"):
        return None  # several pictures in one file
    if segment.startswith(b"Exif\0\0"):
        return _exif_orientation(segment[6:])
    if b"http://ns.adobe.com/xap" in segment[:32] and b"rientation" in segment:
        return None  # Pillow also reads the orientation from XMP
    return orientation


def _exif_orientation(tiff: bytes) -> int | None:
    """Tag 0x0112 of the first directory; 1 when absent, None when the block is unusual."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None or len(tiff) < 10:
        return None
    (at,) = struct.unpack_from(order + "I", tiff, 4)
    if at + 2 > len(tiff):
        return None
    (entries,) = struct.unpack_from(order + "H", tiff, at)
    if at + 2 + 12 * entries > len(tiff):
        return None
    for k in range(entries):
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, at + 2 + 12 * k)
        if tag == _ORIENTATION:
            return value if kind == 3 and count == 1 and 1 <= value <= 8 else None
    return 1


def _png(data: bytes | memoryview) -> Header | None:
    """IHDR, then the chunks before the pixels: an eXIf or XMP chunk is Pillow's to read."""
    if len(data) < 33 or bytes(data[12:16]) != b"IHDR":
        return None
    width, height = struct.unpack_from(">II", data, 16)
    if not width or not height or width >= 1 << 31 or height >= 1 << 31:
        return None
    at = 8
    while at + 8 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        kind = bytes(data[at + 4 : at + 8])
        if kind == b"IDAT":
            return Header("PNG", width, height)
        if kind in (b"eXIf", b"iTXt", b"zTXt", b"tEXt"):
            return None
        at += 12 + length
    return None


def _pillow_header(data: bytes | memoryview) -> Header:
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as image:
            width, height = image.size
            form = image.format or "?"
            return Header(form, width, height, _pillow_orientation(image, form))
    except Image.DecompressionBombError as error:
        raise BadSample("image.too-large", str(error)) from None
    except Exception as error:
        raise BadSample("image.unreadable", _why_unreadable(data, error)) from None


def _pillow_orientation(image: Image.Image, form: str) -> int:
    """As ``ImageOps.exif_transpose`` finds it, but without decoding a PNG to look behind it."""
    if form == "TIFF":
        return 1  # Pillow rotates a TIFF itself; its size is already the upright one
    try:
        if form == "PNG":
            image.load = _no_load  # type: ignore[method-assign]
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception:
        # damaged metadata does not damage the picture: unrotated, as Pillow's own callers do
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


def _no_load() -> None:
    """Stands in for ``Image.load`` while metadata is read."""


def _why_unreadable(data: bytes | memoryview, error: Exception) -> str:
    """The frequent confusions by name, otherwise Pillow's words."""
    head = bytes(data[:256]).lstrip().lower()
    if head.startswith((b"<!doctype html", b"<html")):
        return "an HTML page, not an image"
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer, not the image: run git lfs pull"
    if head.startswith((b"<svg", b"<?xml")):
        return "an SVG or XML file, not a raster image"
    if isinstance(error, UnidentifiedImageError):
        return f"no image of the formats {', '.join(FORMATS)}"
    return f"{type(error).__name__}: {error}"
