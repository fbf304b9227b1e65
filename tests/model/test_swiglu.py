from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from brim.model.swiglu import _SwigluDown, swiglu, swiglu_backward, swiglu_down

ROWS, WIDTH, HIDDEN = 13, 1030, 24  # more than one block of a kernel, and not a whole number


def _inputs(dtype: torch.dtype, device: str = "cpu") -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    gate_up = torch.randn(ROWS, 2 * WIDTH, generator=generator)
    grad = torch.randn(ROWS, WIDTH, generator=generator)
    return gate_up.to(device, dtype), grad.to(device, dtype)


def _expected(gate_up: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Activations and the gradient of gate and up, by autograd in float64."""
    leaf = gate_up.double().cpu().requires_grad_()
    gate, up = leaf.chunk(2, dim=-1)
    out = F.silu(gate) * up
    (slope,) = torch.autograd.grad(out, leaf, grad.double().cpu())
    return out.detach(), slope


def _off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return ((found.double().cpu() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.bfloat16, 3e-3)])
def test_both_operators_equal_autograd_in_float64(dtype: torch.dtype, near: float) -> None:
    gate_up, grad = _inputs(dtype)
    out, slope = _expected(gate_up, grad)
    assert _off(swiglu(gate_up), out) < near
    found, again = swiglu_backward(gate_up, grad)
    assert _off(found, slope) < near
    assert torch.equal(again, swiglu(gate_up))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_gradients_flow_through_the_operator_alone(compiled: bool) -> None:
    gate_up, grad = _inputs(torch.float32)
    _, slope = _expected(gate_up, grad)

    def activations(x: torch.Tensor) -> torch.Tensor:
        return swiglu(x * 2)

    run = torch.compile(activations, fullgraph=True, backend="aot_eager") if compiled else None
    leaf = (gate_up / 2).requires_grad_()
    (run or activations)(leaf).backward(grad)
    assert leaf.grad is not None and _off(leaf.grad / 2, slope) < 1e-6


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_kernels_equal_autograd_in_float64() -> None:
    gate_up, grad = _inputs(torch.bfloat16, "cuda")
    out, slope = _expected(gate_up, grad)
    assert _off(swiglu(gate_up), out) < 3e-3
    found, again = swiglu_backward(gate_up, grad)
    assert _off(found, slope) < 3e-3
    assert torch.equal(again, swiglu(gate_up))


def test_the_operators_promise_the_shapes_that_they_return() -> None:
    gate_up, grad = _inputs(torch.float32)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.brim.swiglu, (gate_up,), test_utils=checks)
    torch.library.opcheck(torch.ops.brim.swiglu_backward, (gate_up, grad), test_utils=checks)


def _layers() -> tuple[torch.Tensor, nn.Linear]:
    torch.manual_seed(1)
    return torch.randn(ROWS, 2 * WIDTH, requires_grad=True), nn.Linear(WIDTH, HIDDEN, bias=False)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_fused_function_gives_the_gradients_of_the_plain_one(compiled: bool) -> None:
    gate_up, down = _layers()

    def fused(x: torch.Tensor) -> torch.Tensor:
        return x[:, :HIDDEN] + _SwigluDown.apply(x * 1.0, down.weight)

    def plain(x: torch.Tensor) -> torch.Tensor:
        return x[:, :HIDDEN] + swiglu_down(x * 1.0, down)  # on the CPU: the module itself

    if compiled:
        fused = torch.compile(fused, fullgraph=True, backend="aot_eager")
    leaves = (gate_up, down.weight)
    expected = torch.autograd.grad(plain(gate_up).square().sum(), leaves)
    found = torch.autograd.grad(fused(gate_up).square().sum(), leaves)
    for a, b in zip(found, expected, strict=True):
        assert torch.allclose(a, b, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_frozen_matrix_gets_no_gradient(compiled: bool) -> None:
    gate_up, down = _layers()
    down.weight.requires_grad_(False)
    function = _SwigluDown.apply
    if compiled:
        function = torch.compile(
            lambda x, w: _SwigluDown.apply(x * 1.0, w), fullgraph=True, backend="aot_eager"
        )
    function(gate_up, down.weight).sum().backward()
    assert gate_up.grad is not None and down.weight.grad is None
