"""Moves of rows against torch's own indexing, values and gradients."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.model.rows import add_rows, blend_rows, take_rows


@st.composite
def some_rows(draw: st.DrawFn) -> tuple[int, torch.Tensor]:
    """A number of rows, and distinct ones of them in any order."""
    count = draw(st.integers(1, 12))
    chosen = draw(st.lists(st.integers(0, count - 1), unique=True))
    return count, torch.tensor(chosen, dtype=torch.int64)


def leaf(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()


@given(some_rows())
@settings(deadline=None)
def test_taken_rows_and_their_gradient_equal_indexing(case: tuple[int, torch.Tensor]) -> None:
    count, rows = case
    ours, theirs = leaf(count, 3), leaf(count, 3)
    upstream = leaf(len(rows), 3, seed=1).detach()
    found, expected = take_rows(ours, rows), theirs[rows]
    assert torch.equal(found, expected)
    found.backward(upstream)
    expected.backward(upstream)
    assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


@given(some_rows())
@settings(deadline=None)
def test_added_rows_and_their_gradients_equal_index_add(case: tuple[int, torch.Tensor]) -> None:
    count, rows = case
    pairs = [(leaf(count, 3), leaf(len(rows), 3, seed=1)) for _ in range(2)]
    upstream = leaf(count, 3, seed=2).detach()
    add_rows(pairs[0][0], rows, pairs[0][1]).backward(upstream)
    pairs[1][0].index_add(0, rows, pairs[1][1]).backward(upstream)
    for ours, theirs in zip(*pairs, strict=True):
        assert torch.equal(ours.grad, theirs.grad)  # type: ignore[arg-type]


def test_adding_leaves_the_input_as_it_was() -> None:
    x = leaf(4, 2)
    before = x.detach().clone()
    added = add_rows(x, torch.tensor([3, 0]), leaf(2, 2, seed=1))
    assert torch.equal(x.detach(), before)
    assert torch.equal(added[1:3], before[1:3])


def test_frozen_values_get_no_gradient() -> None:
    x, values = leaf(4, 2), leaf(2, 2, seed=1).detach()
    add_rows(x, torch.tensor([1, 2]), values).sum().backward()
    assert values.grad is None
    assert torch.equal(x.grad, torch.ones(4, 2, dtype=torch.float64))  # type: ignore[arg-type]


@given(
    patches=st.integers(0, 9),
    table=st.integers(1, 6),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_blended_rows_equal_a_weighted_sum_also_where_taps_repeat(
    patches: int, table: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    indices = torch.randint(0, table, (patches, 4), generator=generator)
    weights = torch.rand(patches, 4, generator=generator)
    ours, theirs = (leaf(table, 5).detach().float().requires_grad_() for _ in range(2))
    upstream = torch.randn(patches, 5, generator=generator)
    found = blend_rows(ours, indices, weights)
    expected = (theirs[indices] * weights[..., None]).sum(1)
    assert torch.allclose(found, expected, atol=1e-6)
    found.backward(upstream)
    expected.backward(upstream)
    assert ours.grad is not None and theirs.grad is not None
    assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)


def test_a_position_in_bfloat16_collects_its_patches_in_float32() -> None:
    # 1,000 patches of 1/256 each: a sum in bfloat16 would stop growing at 1
    table = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    indices = torch.zeros(1000, 1, dtype=torch.int64)
    blend_rows(table, indices, torch.full((1000, 1), 2**-8)).sum().backward()
    assert table.grad is not None
    assert float(table.grad) == pytest.approx(1000 / 256, rel=2**-8)
