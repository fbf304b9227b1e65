"""Sizes as the transformers processors compute them, for every size there is."""

from __future__ import annotations

import ast
import functools
import inspect
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import transformers
from hypothesis import given
from hypothesis import strategies as st
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference

from brim.data.geometry import (
    Grid,
    Vision,
    image_grid,
    smart_resize,
    smart_resize_many,
    smart_resize_video,
    video_grid,
)
from brim.data.quarantine import BadSample
from brim.errors import ConfigError

VISION = Vision()
sides = st.integers(1, 30_000)


@functools.cache
def reference_video() -> Callable[..., tuple[int, int]]:
    """transformers' own video rule, lifted out of a module that needs torchvision to import."""
    path = Path(inspect.getfile(transformers)).parent
    source = (path / "models/qwen3_vl/video_processing_qwen3_vl.py").read_text()
    [function] = [
        node
        for node in ast.parse(source).body
        if isinstance(node, ast.FunctionDef) and node.name == "smart_resize"
    ]
    scope: dict[str, Callable[..., tuple[int, int]]] = {}
    exec(ast.unparse(function), {"math": math}, scope)
    return scope["smart_resize"]


@given(sides, sides)
def test_an_image_gets_the_size_that_transformers_gives_it(height: int, width: int) -> None:
    limits = (VISION.factor, VISION.min_pixels, VISION.max_pixels)
    try:
        expected = reference(height, width, *limits)
    except ValueError:
        with pytest.raises(BadSample) as caught:
            smart_resize(height, width, VISION)
        assert caught.value.kind == "image.aspect"
    else:
        assert smart_resize(height, width, VISION) == expected


@given(
    st.lists(st.tuples(st.integers(150, 30_000), st.integers(150, 30_000)), min_size=1),
    st.sampled_from([Vision(), Vision(max_pixels=1 << 20), Vision(min_pixels=1, max_pixels=4096)]),
)
def test_many_sizes_at_once_equal_one_by_one(shapes: list[tuple[int, int]], vision: Vision) -> None:
    heights, widths = np.array(shapes, dtype=np.int64).T
    h, w = smart_resize_many(heights, widths, vision)
    expected = [smart_resize(*shape, vision) for shape in shapes]
    assert list(zip(h.tolist(), w.tolist(), strict=True)) == expected


@given(st.integers(2, 768), st.integers(8, 4000), st.integers(8, 4000))
def test_a_video_gets_the_size_that_transformers_gives_it(
    frames: int, height: int, width: int
) -> None:
    limits = {"min_pixels": VISION.video_min_pixels, "max_pixels": VISION.video_max_pixels}
    try:
        expected = reference_video()(frames, height, width, factor=32, **limits)
    except ValueError:
        with pytest.raises(BadSample, match="ratio"):
            smart_resize_video(frames, height, width, VISION)
    else:
        assert smart_resize_video(frames, height, width, VISION) == expected


@pytest.mark.parametrize(
    ("width", "height", "tokens"),
    [(640, 480, 300), (1024, 768, 768), (1280, 960, 1200), (1536, 1024, 1536)],
)
def test_visual_tokens_of_the_usual_sizes(width: int, height: int, tokens: int) -> None:
    grid = image_grid(height, width, VISION)
    assert grid.tokens(VISION.merge) == tokens
    assert grid.patches == 4 * tokens


def test_a_video_of_5_frames_has_3_temporal_patches() -> None:
    assert video_grid(5, 320, 320, VISION) == Grid(3, 20, 20)


def test_a_video_of_one_frame_and_an_image_without_area_are_bad_samples() -> None:
    with pytest.raises(BadSample, match="1 frames"):
        video_grid(1, 320, 320, VISION)
    with pytest.raises(BadSample, match="0×5"):
        smart_resize(5, 0, VISION)


def test_the_processor_file_of_a_model_sets_the_limits() -> None:
    config = {
        "patch_size": 14,
        "merge_size": 2,
        "size": {"shortest_edge": 50, "longest_edge": 9999},
    }
    found = Vision.of_processor(config, max_pixels=5000)
    assert (found.factor, found.min_pixels, found.max_pixels) == (28, 50, 5000)


def test_limits_that_exclude_each_other_name_the_fields() -> None:
    with pytest.raises(ConfigError, match=r"data\.min_pixels is 70000"):
        Vision(min_pixels=70_000, max_pixels=65_536)
    with pytest.raises(ConfigError, match="one visual token"):
        Vision(min_pixels=1, max_pixels=900)
