"""What a row costs, against the model's own count of its FLOPs."""

from __future__ import annotations

import numpy as np
import pytest

from brim.data.cost import Cost
from brim.model.batch import RowCounts
from brim.model.config import FAMILY, ModelConfig
from brim.model.flops import forward


def counts(tokens: int, documents: int, scored: int, frames: int, patches: int) -> RowCounts:
    """Documents and frames of equal sizes."""
    return RowCounts(
        tokens=tokens,
        scored=scored,
        patches=frames * patches,
        images=frames,
        frames=frames,
        documents=documents,
        token_squares=documents * (tokens // documents) ** 2,
        patch_squares=frames * patches**2,
        longest_document=tokens // documents,
        longest_frame=patches,
    )


ROWS = [
    counts(8192, 1, 100, 0, 0),
    counts(8192, 16, 4000, 0, 0),
    counts(8192, 8, 900, 7, 4096),
    counts(4096, 4, 10, 4, 16_384 // 4),
]


@pytest.mark.parametrize("size", sorted(FAMILY))
def test_a_rows_cost_is_the_models_forward_pass(size: str) -> None:
    config = ModelConfig.named(size)
    cost = Cost.of_model(config.to_hf())
    columns = [
        np.array([getattr(row, name) for row in ROWS], np.int64)
        for name in ("tokens", "token_squares", "scored", "patches", "patch_squares")
    ]
    expected = [forward(config, row).total for row in ROWS]
    np.testing.assert_allclose(cost.of(*columns), expected, rtol=1e-12)


def test_without_a_configuration_a_row_costs_what_it_costs_the_4b_model() -> None:
    ours, theirs = Cost(), Cost.of_model(ModelConfig.named("4B").to_hf())
    for name in ("token", "token_square", "scored", "patch_square"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-3)
    assert ours.patch == pytest.approx(theirs.patch, rel=0.02)


def test_a_token_of_a_model_with_experts_costs_those_that_it_takes() -> None:
    dense, sparse = (Cost.of_model(ModelConfig.named(s).to_hf()) for s in ("32B", "30B-A3B"))
    assert sparse.token < dense.token / 10
