"""Lengths and costs of samples, and what becomes of those longer than a row."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.data.columns import Columns, Scan
from brim.data.columns import ScannedPicture as Picture
from brim.data.columns import ScannedSample as Sample
from brim.data.cost import Cost
from brim.data.geometry import Vision, image_grid, video_grid
from brim.data.samples import Samples, gather, limited
from brim.data.store import Stamp
from brim.errors import InputError

VISION = Vision()


def picture(height: int, width: int, frames: int = 0) -> Picture:
    return Picture("a.jpg", height, width, frames, Stamp(1, 1))


def gathered(
    samples: list[Sample], limit: int = 8192, overlong: str = "shrink", vision: Vision = VISION
) -> Samples:
    scan = Scan(Columns.of(samples), [], records=len(samples))
    return gather([scan], vision, Cost(), tokens_per_row=limit, overlong=overlong)  # type: ignore[arg-type]


shapes = st.lists(st.tuples(st.integers(40, 3000), st.integers(40, 3000)), max_size=4)


@given(st.lists(shapes, min_size=1, max_size=5))
def test_a_sample_is_as_long_as_its_text_and_its_images_tokens(
    images: list[list[tuple[int, int]]],
) -> None:
    samples = [
        Sample(n, 50 + n, 9, 40, 3, tuple(picture(*s) for s in shapes))
        for n, shapes in enumerate(images)
    ]
    found = gathered(samples, limit=1 << 20)
    for n, shapes in enumerate(images):
        grids = [image_grid(*shape, VISION) for shape in shapes]
        assert found.length[n] == 50 + n + sum(g.tokens(2) for g in grids)
        assert found.patches[n] == sum(g.patches for g in grids)
        assert found.patch_squares[n] == sum(g.patches**2 for g in grids)
    assert not found.overlong


def test_frames_of_a_video_are_attended_one_by_one() -> None:
    found = gathered([Sample(0, 50, 9, 40, 3, (picture(480, 640, 7),))], limit=1 << 20)
    grid = video_grid(7, 480, 640, VISION)
    assert found.patches[0] == grid.patches == 4 * grid.h * grid.w
    assert found.patch_squares[0] == 4 * (grid.h * grid.w) ** 2
    assert found.length[0] == 50 + grid.tokens(2)


@settings(max_examples=40)
@given(shapes.filter(bool), st.integers(40, 2000))
def test_shrunk_images_fit_and_would_not_with_one_token_more_each(
    images: list[tuple[int, int]], limit: int
) -> None:
    vision = Vision(min_pixels=1024)
    sample = Sample(0, 30, 5, 20, 2, tuple(picture(*s) for s in images))
    try:
        found = gathered([sample], limit, vision=vision)
    except InputError:
        assert len(images) * 1 + 30 > limit or limit < 60
        return
    assert found.length[0] <= limit
    if found.overlong["pictures shrunk"]:
        [cap] = found.max_pixels
        grids = [image_grid(*s, limited(vision, int(cap))) for s in images]
        assert found.length[0] == 30 + sum(g.tokens(2) for g in grids)
        assert found.patch_squares[0] == sum(g.patches**2 for g in grids)
        more = limited(vision, int(cap) + vision.factor**2)
        assert 30 + sum(image_grid(*s, more).tokens(2) for s in images) > limit


@pytest.mark.parametrize(
    ("overlong", "what", "length"),
    [
        ("shrink", "pictures shrunk", 30 + 21 * 21),
        ("truncate", "dropped", 0),
        ("drop", "dropped", 0),
    ],
)
def test_a_large_image_before_the_text_is_shrunk_or_the_sample_dropped(
    overlong: str, what: str, length: int
) -> None:
    samples = [Sample(0, 30, 5, 20, 2, (picture(1000, 1000),)), Sample(1, 30, 5, 20, 2, ())]
    found = gathered(samples, 500, overlong)
    assert found.overlong == {what: 1}
    assert found.length.tolist() == ([length, 30] if length else [30])
    assert found.record.tolist() == ([0, 1] if length else [1])


@pytest.mark.parametrize("overlong", ["shrink", "truncate"])
def test_a_long_text_is_cut_as_long_as_something_is_left_to_learn(overlong: str) -> None:
    learnt_early = Sample(0, 900, 500, 900, 100, ())
    learnt_late = Sample(1, 900, 100, 900, 800, ())
    found = gathered([learnt_early, learnt_late], 500, overlong)
    assert found.overlong == {"text cut": 1, "dropped": 1}
    assert found.length.tolist() == [500]
    assert found.record.tolist() == [0]


def test_nothing_left_to_train_on_is_an_error() -> None:
    with pytest.raises(InputError, match="no sample is left"):
        gathered([Sample(0, 900, 5, 900, 2, ())], 500, "drop")


QWEN3_VL_4B = {
    "text_config": {
        "hidden_size": 2560, "num_hidden_layers": 36, "head_dim": 128, "num_attention_heads": 32,
        "num_key_value_heads": 8, "intermediate_size": 9728, "vocab_size": 151_936,
    },
    "vision_config": {
        "hidden_size": 1024, "depth": 24, "intermediate_size": 4096, "patch_size": 16,
        "temporal_patch_size": 2, "spatial_merge_size": 2, "deepstack_visual_indexes": [5, 11, 17],
    },
}  # fmt: skip


def test_the_cost_of_the_4b_model_follows_from_its_configuration() -> None:
    found, default = Cost.of_model(QWEN3_VL_4B), Cost()
    for name in ("token", "token_square", "scored", "patch", "patch_square"):
        assert getattr(found, name) == pytest.approx(getattr(default, name), rel=2e-3), name


def test_costs_add_up_over_samples() -> None:
    ints = np.array([3, 5])
    total = Cost(token=1, token_square=10, scored=100, patch=1000, patch_square=1e4).of(
        ints, ints**2, ints, ints, ints**2
    )
    assert total.tolist() == [3 + 90 + 300 + 3000 + 90_000, 5 + 250 + 500 + 5000 + 250_000]
