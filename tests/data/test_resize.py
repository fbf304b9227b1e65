"""Resizing against the transformers processors, whole pipeline included."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.data.pictures import jpeg, picture
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from brim.data.decode import DecodePolicy
from brim.data.geometry import Vision
from brim.data.resize import load_image, resize

VISION = Vision(max_pixels=1 << 20)
RECORDED = json.loads((Path(__file__).parent / "resize_sha256.json").read_text())


def processor_pixels(data: bytes) -> np.ndarray:
    """uint8 [h, w, 3] as transformers' Pillow back end resizes them."""
    processor = Qwen2VLImageProcessorPil(
        patch_size=16,
        size={"shortest_edge": VISION.min_pixels, "longest_edge": VISION.max_pixels},
        image_mean=[0.0] * 3,
        image_std=[1.0] * 3,
    )
    with Image.open(io.BytesIO(data)) as image:
        out = processor(image.convert("RGB"), return_tensors="np")
    t, h, w = out["image_grid_thw"][0]
    patches = out["pixel_values"].reshape(t, h // 2, w // 2, 2, 2, 3, 2, 16, 16)[..., 0, :, :]
    whole = patches.transpose(0, 1, 3, 6, 2, 4, 7, 5).reshape(h * 16, w * 16, 3)
    return np.rint(whole * 255).astype(np.int64)


@pytest.mark.parametrize("size", [(200, 300), (480, 640), (700, 1100), (1500, 1300)])
def test_within_one_grey_level_of_the_pillow_processor_on_nearly_all_pixels(
    size: tuple[int, int],
) -> None:
    data = jpeg(*size)
    ours, theirs = load_image(data, VISION).astype(int), processor_pixels(data)
    assert ours.shape == theirs.shape
    error = np.abs(ours - theirs)
    assert error.mean() < 0.05
    assert (error > 1).mean() < 1e-4


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: case["name"])
def test_the_same_bits_on_every_machine(
    case: dict[str, object],
) -> None:
    height, width = case["from"]  # type: ignore[misc]
    # benchmarks/data_gpu.py compares the torchvision processor with the same sums
    out = resize(picture(height, width, seed=7), *case["to"])  # type: ignore[misc]
    assert hashlib.sha256(out.tobytes()).hexdigest() == case["sha256"]


def test_the_way_it_lies_in_memory_changes_no_bit() -> None:
    pixels = picture(210, 333, seed=7)
    planes = np.ascontiguousarray(pixels.transpose(2, 0, 1)).transpose(1, 2, 0)
    found = resize(pixels, 224, 320)
    np.testing.assert_array_equal(found, resize(planes, 224, 320))
    assert found.flags.c_contiguous  # pixel by pixel: the quick way was taken


def test_a_fitting_picture_is_returned_as_it_is() -> None:
    pixels = picture(64, 96)
    assert resize(pixels, 64, 96) is pixels


def test_dct_scaling_of_a_large_photograph_errs_by_under_half_a_grey_level_on_average() -> None:
    data = jpeg(1200, 1600, quality=92)
    small = Vision(max_pixels=1 << 18)
    exact = load_image(data, small).astype(int)
    scaled = load_image(data, small, DecodePolicy(dct_scaling=True)).astype(int)
    assert exact.shape == scaled.shape
    assert 0 < np.abs(exact - scaled).mean() < 1.0
