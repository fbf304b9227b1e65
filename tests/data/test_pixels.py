"""What the device computes from uint8, against the processor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.data.pictures import picture
from tests.kernels import run_kernel
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from brim.data.indices import write_patches
from brim.data.pixels import cut, kernel, normalize, patchify, processor_values, reference_cut
from brim.data.rows import lay


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


def test_each_of_256_values_is_the_textbooks_to_the_bit() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    textbook = (levels.float() / 255 - 0.5) / 0.5
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(normalize(levels, dtype), textbook.to(dtype))


def test_white_is_1_and_black_is_minus_1() -> None:
    values = normalize(torch.tensor([0, 255], dtype=torch.uint8), torch.bfloat16)
    assert values.tolist() == [-1.0, 1.0]


def laid(frames: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames one after the other, and the table that tells where each lies."""
    pixels = np.empty(sum(frame.size for frame in frames), np.uint8)
    table, at, first = [], 0, 0
    for frame in frames:
        h, w = frame.shape[0] // 16, frame.shape[1] // 16
        strides = lay(frame, pixels[at : at + frame.size])
        table.append((at, first, h, w, *strides, 0))
        at, first = at + frame.size, first + h * w
    return torch.from_numpy(pixels), torch.tensor(table)


def by_planes(frame: np.ndarray) -> np.ndarray:
    """The same frame, plane after plane in memory."""
    return np.ascontiguousarray(frame.transpose(2, 0, 1)).transpose(1, 2, 0)


sizes = st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans())


@settings(max_examples=30, deadline=None)
@given(st.lists(sizes, min_size=1, max_size=4))
def test_whole_frames_are_cut_as_the_loader_cuts_them(
    shapes: list[tuple[int, int, bool]],
) -> None:
    frames = [picture(32 * h, 32 * w, seed) for seed, (h, w, _) in enumerate(shapes)]
    expected = np.empty((sum(f.size for f in frames) // 768, 768), np.uint8)
    at = 0
    for frame in frames:
        write_patches(frame, expected[at : at + frame.size // 768], 16, 2)
        at += frame.size // 768
    pixels, table = laid(
        [by_planes(f) if planes else f for f, (_, _, planes) in zip(frames, shapes, strict=True)]
    )
    found = cut(pixels, table, table, moments=1, patch=16, merge=2, dtype=torch.uint8)
    np.testing.assert_array_equal(found.numpy(), expected)
    half = cut(pixels, table, table, moments=1, patch=16, merge=2, dtype=torch.bfloat16)
    assert torch.equal(half, normalize(torch.from_numpy(expected), torch.bfloat16))


def test_a_frame_cut_and_normalised_is_the_processors_to_a_rounding() -> None:
    frame = picture(96, 64)
    processor = Qwen2VLImageProcessorPil(
        patch_size=16, size={"shortest_edge": 1, "longest_edge": 1 << 30},
        image_mean=[0.5] * 3, image_std=[0.5] * 3,
    )  # fmt: skip
    both = torch.from_numpy(processor(frame, return_tensors="np")["pixel_values"])
    once = both.view(-1, 3, 2, 256)[:, :, 0].reshape(-1, 768)
    pixels, table = laid([by_planes(frame)])
    found = cut(pixels, table, table, moments=1, patch=16, merge=2, dtype=torch.bfloat16)
    # float32 differs by a unit of its last place, which may turn a tie of bfloat16
    assert (found != once.bfloat16()).float().mean() < 0.01
    torch.testing.assert_close(found, once.bfloat16(), atol=2**-8, rtol=0)


def test_what_cuts_is_plain_torch_on_a_cpu_and_for_patches_of_14() -> None:
    assert kernel("cpu") is reference_cut
    assert kernel("cuda", 14) is reference_cut


KERNEL = """
import sys
import torch
from brim.data.pixels import normalize, reference_cut
from brim.data.pixels_triton import cut
from brim.data.pixels_triton import normalize as fused

device = sys.argv[1]
generator = torch.Generator().manual_seed(0)
pixels = torch.randint(0, 256, (40_000,), generator=generator, dtype=torch.uint8)
pixels[:256] = torch.arange(256)
for moments, table in (
    # by pixels, by planes, wide and high, of one visual token
    (1, [(0, 0, 2, 4, 192, 3, 1, 0), (6144, 8, 4, 2, 32, 1, 2048, 0),
         (12_288, 16, 2, 2, 96, 3, 1, 0), (15_360, 20, 6, 4, 64, 1, 6144, 0)]),
    # frames of videos, the last one twice
    (2, [(0, 0, 2, 2, 96, 3, 1, 0), (3072, 0, 2, 2, 32, 1, 1024, 1), (6144, 4, 2, 2, 96, 3, 1, 0),
         (6144, 4, 2, 2, 96, 3, 1, 1)]),
):
    frames = torch.tensor(table)
    count = int((frames[:, 2] * frames[:, 3]).sum()) // moments
    largest = int((frames[:, 2] * frames[:, 3]).max())
    for dtype in (torch.uint8, torch.float32, torch.float16, torch.bfloat16):
        results = []
        for function, where in ((reference_cut, "cpu"), (cut, device)):
            out = torch.full((count, 768 * moments), 7, dtype=dtype, device=where)
            function(pixels.to(where), frames.to(where), out, patch=16, merge=2, largest=largest)
            results.append(out.cpu().float())
        # the interpreter cuts where a device rounds to bfloat16
        slack = 2.0**-7 if device == "cpu" and dtype is torch.bfloat16 else 0.0
        worst = (results[0] - results[1]).abs().max().item()
        assert worst <= slack, (moments, dtype, worst)
for shape in ((0, 768), (256,), (3, 3, 1000)):
    levels = torch.arange(torch.Size(shape).numel()).to(torch.uint8).view(shape)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        found = fused(levels.to(device), dtype).cpu()
        assert found.shape == levels.shape and found.dtype is dtype
        slack = 2.0**-7 if device == "cpu" and dtype is torch.bfloat16 else 0.0
        assert torch.allclose(found.float(), normalize(levels, dtype).float(), rtol=0, atol=slack)
print("equal")
"""


def test_the_triton_kernel_in_the_interpreter_equals_the_reference() -> None:
    pytest.importorskip("triton")
    assert "equal" in run_kernel(KERNEL, "cpu", TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_the_triton_kernel_on_a_gpu_equals_the_reference_bit_by_bit() -> None:
    assert "equal" in run_kernel(KERNEL, "cuda")


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_plain_torch_has_the_same_256_values() -> None:
    levels = torch.arange(256, dtype=torch.uint8)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert torch.equal(normalize(levels.cuda(), dtype).cpu(), normalize(levels, dtype))
