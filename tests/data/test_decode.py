"""Pixels: bit-equal to Pillow where both decode, one stated policy for the rest, never a crash."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps
from tests.data.pictures import encode, jpeg, picture
from transformers.image_transforms import convert_to_rgb

from brim.data.decode import DecodePolicy, decode
from brim.data.header import read_header
from brim.data.quarantine import BadSample


def by_pillow(data: bytes) -> np.ndarray:
    """What transformers makes of a file before resizing: upright, alpha on white."""
    with Image.open(io.BytesIO(data)) as image:
        return np.array(convert_to_rgb(ImageOps.exif_transpose(image)))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("size", [(64, 64), (63, 127), (1, 1), (3, 500)])
def test_a_jpeg_has_pillows_pixels_bit_by_bit(
    progressive: bool, subsampling: int, size: tuple[int, int]
) -> None:
    data = jpeg(*size, progressive=progressive, subsampling=subsampling)
    np.testing.assert_array_equal(decode(data), by_pillow(data))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_grey_and_cmyk_jpegs_have_pillows_pixels(mode: str) -> None:
    out = io.BytesIO()
    Image.fromarray(picture(50, 70)).convert(mode).save(out, "JPEG")
    np.testing.assert_array_equal(decode(out.getvalue()), by_pillow(out.getvalue()))


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "L", "1", "RGB"])
def test_alpha_is_composited_on_white_as_the_reference_does(mode: str) -> None:
    image = Image.fromarray(picture(40, 30)).convert("RGBA")
    image.putalpha(Image.fromarray((np.arange(1200).reshape(40, 30) % 256).astype(np.uint8)))
    options = {"transparency": 3} if mode == "P" else {}
    out = io.BytesIO()
    (image.convert("RGB").quantize(16) if mode == "P" else image.convert(mode)).save(
        out, "PNG", **options
    )
    np.testing.assert_array_equal(decode(out.getvalue()), by_pillow(out.getvalue()))


def test_sixteen_bit_grey_keeps_its_upper_8_bits_instead_of_turning_white() -> None:
    values = np.linspace(0, 65535, 64 * 64).reshape(64, 64).astype(np.uint16)
    out = io.BytesIO()
    Image.fromarray(values).save(out, "PNG")
    np.testing.assert_array_equal(decode(out.getvalue())[:, :, 1], values >> 8)


def test_float_pixels_are_refused_by_name() -> None:
    out = io.BytesIO()
    Image.fromarray(np.zeros((4, 4), np.float32)).save(out, "TIFF")
    with pytest.raises(BadSample, match="mode F"):
        decode(out.getvalue())


@pytest.mark.parametrize("form", ["GIF", "PNG", "WEBP"])
def test_of_an_animation_the_first_frame_is_taken(form: str) -> None:
    frames = [Image.fromarray(np.full((20, 20, 3), level, np.uint8)) for level in (10, 200)]
    out = io.BytesIO()
    options = {"lossless": True} if form == "WEBP" else {}
    frames[0].save(out, form, save_all=True, append_images=frames[1:], **options)
    assert np.abs(decode(out.getvalue()).astype(int) - 10).max() <= 1


@pytest.mark.parametrize("value", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_each_exif_orientation_is_undone(value: int, form: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = value
    data = encode(picture(24, 40), form, exif=exif)
    np.testing.assert_array_equal(decode(data), by_pillow(data))
    stored = decode(data, DecodePolicy(rotate=False))
    assert stored.shape == (24, 40, 3)


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.9, 0.99])
@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_a_cut_file_is_refused_never_half_grey(keep: float, form: str) -> None:
    data = encode(picture(128, 128), form)
    with pytest.raises(BadSample):
        decode(data[: int(len(data) * keep)])


def test_extra_bytes_after_a_jpeg_do_no_harm() -> None:
    data = jpeg(64, 64)
    np.testing.assert_array_equal(decode(data + b"PK\x03\x04 zip"), decode(data))
    padded = data[:-2] + bytes(5) + data[-2:]
    np.testing.assert_array_equal(decode(padded), decode(data))


def test_a_bomb_is_refused_from_its_header() -> None:
    data = encode(np.zeros((300, 400, 3), np.uint8), "PNG")
    with pytest.raises(BadSample, match=r"400×300 pixels; the limit is 0\.1 million"):
        decode(data, DecodePolicy(max_file_pixels=100_000))


def test_dct_scaling_halves_while_decoding_and_never_below_the_target() -> None:
    data = jpeg(800, 1200)
    scaled = DecodePolicy(dct_scaling=True)
    assert decode(data, scaled, target=(400, 600)).shape == (400, 600, 3)
    assert decode(data, scaled, target=(401, 600)).shape == (800, 1200, 3)
    assert decode(data, target=(100, 100)).shape == (800, 1200, 3)


def test_dct_scaling_of_a_rotated_photograph_looks_at_the_stored_sides() -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    data = encode(picture(800, 1200), "JPEG", exif=exif)
    assert decode(data, DecodePolicy(dct_scaling=True), target=(600, 400)).shape == (600, 400, 3)


@settings(max_examples=60)
@given(st.data())
def test_any_damage_gives_pixels_of_the_header_size_or_a_bad_sample(data: st.DataObject) -> None:
    form = data.draw(st.sampled_from(["JPEG", "PNG", "WEBP", "GIF", "BMP"]))
    raw = bytearray(encode(picture(48, 40), form))
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        pixels = decode(bytes(raw), DecodePolicy(max_file_pixels=1_000_000))
    except BadSample:
        return
    assert pixels.shape == (*read_header(bytes(raw)).upright(), 3)
    assert pixels.dtype == np.uint8


# what loads in Pillow and is refused here, by rule
REFUSED = {
    "image.too-large": {"made/bomb_real_10000x10000.png"},
    "image.mode": {"pillow/hopper.pfm"},
    "image.damaged": {f"afl_jpeg/afl_{n}.jpg" for n in ("002", "011", "039", "053")},
}
OTHER_FORMATS = {"ICO", "JPEG2000", "CUR", "PSD", "DDS", "FITS", "QOI", "XBM", "TGA"}


def test_449_odd_and_corrupt_files_give_pixels_or_a_reason(
    shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    root = shared / "bad-inputs" / "images"
    outcomes = json.loads((root / "outcomes.json").read_text())["files"]
    assert len(outcomes) == 449
    for name, seen in outcomes.items():
        data = (root / name).read_bytes()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                pixels = decode(data)
        except BadSample as bad:
            if seen["outcome"] == "loads" and seen["format"] not in OTHER_FORMATS:
                assert name in REFUSED[bad.kind], f"{name}: {bad.reason}"
        else:
            assert seen["outcome"] == "loads", f"{name} should be refused: {seen['error']}"
            assert pixels.shape == (*read_header(data).upright(), 3), name
    capfd.readouterr()  # libtiff speaks on stderr
