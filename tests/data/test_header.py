"""The header parser agrees with Pillow on whatever it dares to answer."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tests.data.pictures import encode, jpeg, picture

from brim.data.header import HEAD, Header, fast_header, read_header
from brim.data.quarantine import BadSample


def with_orientation(value: int, form: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = value
    return encode(picture(40, 64), form, exif=exif)


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_all_8_orientations_give_the_upright_size_of_exif_transpose(value: int, form: str) -> None:
    data = with_orientation(value, form)
    with Image.open(io.BytesIO(data)) as image:
        width, height = ImageOps.exif_transpose(image).size
    assert read_header(data).upright() == (height, width)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
def test_a_jpeg_is_read_from_its_head_alone(progressive: bool, subsampling: int) -> None:
    data = jpeg(123, 456, progressive=progressive, subsampling=subsampling)
    assert fast_header(data[:HEAD]) == Header("JPEG", 456, 123, 1, 3)


def test_a_png_is_read_from_its_head_alone() -> None:
    assert fast_header(encode(picture(33, 77), "PNG")[:200]) == Header("PNG", 77, 33)


def test_an_orientation_in_xmp_is_left_to_pillow_and_found() -> None:
    xmp = b'<x:xmpmeta xmlns:x="adobe:ns:meta/"><a tiff:Orientation="6"/></x:xmpmeta>'
    data = encode(picture(40, 64), "JPEG", xmp=xmp)
    assert fast_header(data) is None
    assert read_header(data).orientation == 6


@pytest.mark.parametrize("form", ["GIF", "BMP", "WEBP", "AVIF", "PPM", "TIFF"])
def test_other_formats_are_read_by_pillow(form: str) -> None:
    header = read_header(encode(picture(20, 30), form))
    assert (header.format, header.width, header.height) == (form, 30, 20)


@given(st.data())
def test_a_cut_or_flipped_head_never_gets_another_size_than_pillow_reads(
    data: st.DataObject,
) -> None:
    original = with_orientation(data.draw(st.integers(1, 8)))
    raw = bytearray(original[: data.draw(st.integers(0, len(original)))])
    for _ in range(data.draw(st.integers(0, 3))):
        if raw:
            at = data.draw(st.integers(0, min(len(raw), 200) - 1))
            raw[at] ^= 1 << data.draw(st.integers(0, 7))
    found = fast_header(bytes(raw))
    if found is not None and found.format == "JPEG":
        try:
            with Image.open(io.BytesIO(raw), formats=["JPEG"]) as image:
                size = image.size
        except Exception:
            return  # refused later, by the decoder
        assert (found.width, found.height) == size


@given(st.binary(max_size=400), st.sampled_from([b"", b"\xff\xd8", b"\x89PNG\r\n\x1a\n", b"RIFF"]))
def test_any_bytes_give_a_header_or_a_bad_sample(body: bytes, magic: bytes) -> None:
    try:
        header = read_header(magic + body)
    except BadSample as bad:
        assert bad.reason
    else:
        assert header.width > 0 and header.height > 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "an empty file"),
        (b"<!DOCTYPE html><html>404</html>", "HTML page"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0", "git lfs pull"),
        (b"<svg xmlns='x'/>", "SVG"),
        (b"hello", "no image of the formats JPEG, PNG"),
    ],
)
def test_the_frequent_confusions_are_named(data: bytes, words: str) -> None:
    with pytest.raises(BadSample, match=words):
        read_header(data)


def test_damaged_exif_does_not_damage_the_picture() -> None:
    data = with_orientation(6)
    at = data.index(b"Exif\0\0") + 6
    broken = data[:at] + b"XX" + data[at + 2 :]
    assert read_header(broken).orientation == 1


def test_a_header_is_read_from_a_memoryview_too() -> None:
    assert read_header(memoryview(jpeg(50, 60))).upright() == (50, 60)
    assert read_header(memoryview(encode(np.zeros((4, 4), np.uint8), "GIF"))).format == "GIF"
