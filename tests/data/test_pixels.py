"""What the device computes from uint8, against the processor."""

from __future__ import annotations

import numpy as np
import torch
from tests.data.pictures import picture
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from brim.data.indices import write_patches
from brim.data.pixels import normalize, patchify, processor_values


def test_pixel_values_equal_the_processors_to_a_rounding_of_float32() -> None:
    pixels = picture(128, 192)
    processor = Qwen2VLImageProcessorPil(
        patch_size=16, size={"shortest_edge": 1, "longest_edge": 1 << 30},
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    expected = torch.from_numpy(processor(pixels, return_tensors="np")["pixel_values"])
    found = processor_values(patchify(torch.from_numpy(pixels)[None]))
    torch.testing.assert_close(found, expected, atol=1.3e-7, rtol=0)
    half = processor_values(patchify(torch.from_numpy(pixels)[None]), torch.bfloat16)
    torch.testing.assert_close(half, expected.bfloat16(), atol=2**-9, rtol=0)


def test_patches_made_on_the_device_equal_those_of_the_loader() -> None:
    images = np.stack([picture(64, 96, seed) for seed in range(3)])
    out = np.empty((3 * 24, 768), np.uint8)
    for k, image in enumerate(images):
        write_patches(image, out[24 * k : 24 * k + 24], 16, 2)
    np.testing.assert_array_equal(patchify(torch.from_numpy(images)).numpy(), out)


def test_white_is_1_and_black_is_minus_1() -> None:
    values = normalize(torch.tensor([0, 255], dtype=torch.uint8), torch.bfloat16)
    assert values.tolist() == [-1.0, 1.0]
