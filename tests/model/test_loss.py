from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from brim.model.loss import RowLoss, _one_pass, linear_cross_entropy, torch_row_loss


def case(rows: int, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(rows)
    hidden = torch.randn(rows, 12, generator=generator).to(dtype).requires_grad_()
    weight = torch.randn(50, 12, generator=generator).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, 50, (rows,), generator=generator)


@pytest.mark.parametrize("row_loss", [torch_row_loss, _one_pass])
@pytest.mark.parametrize("chunk", [3, 7, 100])
@pytest.mark.parametrize("scale", [1.0, 0.125])
def test_loss_and_gradients_equal_cross_entropy_in_float64_for_any_chunk(
    row_loss: RowLoss, chunk: int, scale: float
) -> None:
    hidden, weight, labels = case(17)
    loss = linear_cross_entropy(hidden, weight, labels, scale=scale, row_loss=row_loss, chunk=chunk)
    (loss * 3).backward()
    exact = [t.detach().double().requires_grad_() for t in (hidden, weight)]
    expected = F.cross_entropy(exact[0] @ exact[1].t(), labels, reduction="sum") * scale
    (expected * 3).backward()
    assert loss.double().item() == pytest.approx(expected.item(), rel=1e-6)
    for found, truth in zip((hidden, weight), exact, strict=True):
        assert found.grad is not None and truth.grad is not None
        assert (found.grad - truth.grad).norm() < 1e-6 * truth.grad.norm()


def test_in_bfloat16_several_chunks_are_summed_in_float32() -> None:
    hidden, weight, labels = case(4000, torch.bfloat16)
    grads = []
    for chunk in (50, 4000):
        weight.grad = None
        linear_cross_entropy(hidden, weight, labels, chunk=chunk).backward()
        assert weight.grad is not None
        grads.append(weight.grad.float())
    exact = weight.detach().double().requires_grad_()
    F.cross_entropy(hidden.detach().double() @ exact.t(), labels, reduction="sum").backward()
    assert exact.grad is not None
    errors = [float((g - exact.grad).norm() / exact.grad.norm()) for g in grads]
    assert errors[0] < 1.2 * errors[1] < 0.01


@pytest.mark.parametrize("frozen", ["hidden", "weight"])
def test_a_frozen_side_gets_no_gradient_and_the_other_side_the_same(frozen: str) -> None:
    hidden, weight, labels = case(9)
    linear_cross_entropy(hidden, weight, labels).backward()
    assert hidden.grad is not None and weight.grad is not None
    expected = weight.grad if frozen == "hidden" else hidden.grad
    sides = {"hidden": hidden.detach(), "weight": weight.detach()}
    other = "weight" if frozen == "hidden" else "hidden"
    sides[other].requires_grad_()
    linear_cross_entropy(sides["hidden"], sides["weight"], labels).backward()
    assert sides[frozen].grad is None
    assert torch.equal(sides[other].grad, expected)


def test_without_gradients_only_the_loss_is_computed() -> None:
    hidden, weight, labels = case(5)
    with torch.no_grad():
        loss = linear_cross_entropy(hidden, weight, labels)
    assert not loss.requires_grad
    assert loss.item() == pytest.approx(
        F.cross_entropy(hidden @ weight.t(), labels, reduction="sum").item(), rel=1e-6
    )


def test_no_labels_mean_loss_zero() -> None:
    hidden, weight, labels = case(0)
    loss = linear_cross_entropy(hidden, weight, labels)
    loss.backward()
    assert loss.item() == 0
    assert weight.grad is not None and not weight.grad.any()


def test_no_kernel_is_asked_for_a_loss_over_nothing() -> None:
    def never(*_: object) -> torch.Tensor:
        raise AssertionError("called without rows")

    hidden, weight, labels = case(0)
    linear_cross_entropy(hidden, weight, labels, row_loss=never).backward()
    assert weight.grad is not None and not weight.grad.any()
