from __future__ import annotations

import sys
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model.exact_attention import BOUND, attend, errors, exact, flash, inputs
from torch.utils._python_dispatch import TorchDispatchMode

from brim.model.attention import (
    BACKENDS,
    Attention,
    efficient_attention,
    fa4_backward_width,
    launch_bound,
    math_attention,
)


@given(
    lengths=st.lists(st.integers(1, 9), min_size=1, max_size=5),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 1)]),
    causal=st.booleans(),
)
@settings(deadline=None, max_examples=40)
def test_packed_attention_equals_each_document_alone(
    lengths: list[int], heads: tuple[int, int], causal: bool
) -> None:
    q, k, v, boundaries = inputs(lengths, *heads, 8)
    found = math_attention(q, k, v, boundaries, max(lengths), causal)
    assert torch.allclose(found.double(), attend(q, k, v, lengths, causal), atol=1e-6)


@pytest.mark.parametrize(
    ("longest", "bound"), [(0, 128), (1, 128), (128, 128), (129, 256), (5000, 8192)]
)
def test_launch_bounds_are_powers_of_two_from_128_on(longest: int, bound: int) -> None:
    assert launch_bound(longest) == bound >= longest


def _stand_in() -> types.ModuleType:
    """The two functions of flash_attn.cute.interface that are called, by plain torch."""

    def forward(
        q, k, v, *, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal, return_lse
    ):  # type: ignore[no-untyped-def]
        assert cu_seqlens_q is cu_seqlens_k and max_seqlen_q == max_seqlen_k and return_lse
        out = math_attention(q, k, v, cu_seqlens_q, max_seqlen_q, causal)
        return out.contiguous(), q.new_zeros(q.shape[1], q.shape[0], dtype=torch.float32), None

    def backward(
        q, k, v, out, dout, lse, *, softmax_scale, causal, cu_seqlens_q, cu_seqlens_k,
        max_seqlen_q, max_seqlen_k,
    ):  # type: ignore[no-untyped-def] # fmt: skip
        assert lse.shape == (q.shape[1], q.shape[0]) and out.shape == q.shape
        assert -(-q.shape[2] // 16) % 2 == 0, "the kernel and its buffer would disagree"
        # an operator runs below autograd, so the gradient is written out
        groups, scale = q.shape[1] // k.shape[1], softmax_scale
        qh, gh = q.transpose(0, 1), dout.transpose(0, 1)
        kh, vh = (t.repeat_interleave(groups, dim=1).transpose(0, 1) for t in (k, v))
        rows = torch.arange(q.shape[0])
        segment = torch.searchsorted(cu_seqlens_q, rows, right=True)
        hidden = (segment[:, None] != segment) | (rows[:, None] < rows)
        weights = (qh @ kh.mT * scale).masked_fill(hidden, float("-inf")).softmax(-1)
        slope = gh @ vh.mT
        slope = weights * (slope - (slope * weights).sum(-1, keepdim=True)) * scale
        dq, dk, dv = slope @ kh, slope.mT @ qh, weights.mT @ gh
        dk, dv = (t.unflatten(0, (-1, groups)).sum(1) for t in (dk, dv))
        return tuple(t.transpose(0, 1).contiguous() for t in (dq, dk, dv))

    module = types.ModuleType("flash_attn.cute.interface")
    module._flash_attn_fwd, module._flash_attn_bwd = forward, backward  # type: ignore[attr-defined]
    return module


@pytest.fixture
def flash_attn(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("flash_attn", "flash_attn.cute"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setitem(sys.modules, "flash_attn.cute.interface", _stand_in())


@pytest.mark.usefixtures("flash_attn")
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_the_operators_around_flash_attention_4_carry_every_argument_and_gradient(
    compiled: bool,
) -> None:
    lengths = [5, 1, 9]
    q, k, v, boundaries = inputs(lengths, 4, 2, 8)
    fused = torch.cat((q, k, v), dim=1)
    grads = []
    for name in ("math", "fa4"):
        attention = BACKENDS[name]

        def block(x: torch.Tensor, attention: Attention = attention) -> torch.Tensor:
            # values are a view into the fused projection, as in a block
            first, second, third = (x * 2).split((4, 2, 2), dim=1)
            return attention(first * 1.5, second.contiguous(), third, boundaries, 128, True) * 3

        if compiled and name == "fa4":
            block = torch.compile(block, fullgraph=True, backend="aot_eager")
        x = fused.clone().requires_grad_()
        block(x).square().sum().backward()
        grads.append(x.grad)
    assert (grads[1] - grads[0]).norm() < 1e-6 * grads[0].norm()


@pytest.mark.usefixtures("flash_attn")
def test_the_operators_promise_the_shapes_that_they_return() -> None:
    q, k, v, boundaries = inputs([5, 7], 4, 2, 32)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.brim.fa4_forward, (q, k, v, boundaries, 128, True), test_utils=checks
    )
    out, lse = torch.ops.brim.fa4_forward(q, k, v, boundaries, 128, True)
    torch.library.opcheck(
        torch.ops.brim.fa4_backward,
        (out, q, k, v, out, lse, boundaries, 128, True, 32**-0.5),
        test_utils=checks,
    )


class _Bounds(TorchDispatchMode):
    """The launch bounds that the memory-efficient kernels are called with."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        for pass_, place in (("forward", 6), ("backward", 8)):
            if func is getattr(torch.ops.aten, f"_efficient_attention_{pass_}").default:
                self.seen += [(pass_, bound) for bound in args[place : place + 2]]
        return func(*args, **(kwargs or {}))


def test_the_memory_efficient_kernels_get_no_bound_above_the_712_rows() -> None:
    q, k, v, boundaries = inputs([130, 1, 517, 64], 4, 2, 8)
    leaves = [t.to("meta").requires_grad_() for t in (q, k, v)]
    with _Bounds() as bounds:
        out = efficient_attention(*leaves, boundaries.to("meta"), launch_bound(517), True)
        out.sum().backward()
    # the backward kernel raises "Invalid max_seqlen_k" for 1,024
    assert bounds.seen == [("forward", 712)] * 2 + [("backward", 712)] * 2


@pytest.mark.parametrize(("size", "width"), [(64, 64), (72, 96), (80, 96), (96, 96), (128, 128)])
def test_heads_are_widened_for_flash_attention_4_where_its_backward_pass_would_be_wrong(
    size: int, width: int
) -> None:
    x = torch.randn(3, 2, size)
    wide = fa4_backward_width(x)
    assert wide.shape == (3, 2, width)
    assert torch.equal(wide[..., :size], x) and not wide[..., size:].any()


CASES = [(8, 2, 128, True), (4, 4, 64, False), (4, 4, 72, False)]
LENGTHS = [130, 1, 517, 64]


def _case(heads: int, kv_heads: int, size: int) -> tuple[torch.Tensor, ...]:
    q, k, v, boundaries = inputs(LENGTHS, heads, kv_heads, size)
    return q, k, v, torch.randn(q.shape, generator=torch.Generator().manual_seed(1)), boundaries


@pytest.mark.parametrize(("heads", "kv_heads", "size", "causal"), CASES)
def test_a_flash_kernel_in_bfloat16_errs_by_a_third_of_the_bound_and_a_wrong_scale_by_more(
    heads: int, kv_heads: int, size: int, causal: bool
) -> None:
    *tensors, _ = _case(heads, kv_heads, size)
    expected = exact(*tensors, LENGTHS, causal)
    right = errors(flash(*tensors, LENGTHS, causal, scale=size**-0.5), expected)
    wrong = errors(flash(*tensors, LENGTHS, causal, scale=(size + 8) ** -0.5), expected)
    assert BOUND / 5 < min(right.values()) <= max(right.values()) < 0.35 * BOUND
    assert min(wrong.values()) > 3 * BOUND


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["fa4", "varlen", "efficient", "math"])
@pytest.mark.parametrize(("heads", "kv_heads", "size", "causal"), CASES)
def test_on_a_gpu_outputs_and_gradients_equal_the_exact_ones_to_bfloat16(
    name: str, heads: int, kv_heads: int, size: int, causal: bool
) -> None:
    if name == "fa4":
        pytest.importorskip("flash_attn.cute")
    q, k, v, grad, boundaries = _case(heads, kv_heads, size)
    leaves = [t.to("cuda", torch.bfloat16).requires_grad_() for t in (q, k, v)]
    bound = launch_bound(max(LENGTHS))
    out = BACKENDS[name](*leaves, boundaries.to("cuda"), bound, causal)
    found = (out, *torch.autograd.grad(out, leaves, grad.to("cuda", torch.bfloat16)))
    gaps = errors(found, exact(q, k, v, grad, LENGTHS, causal))  # type: ignore[arg-type]
    figures = ", ".join(f"{part} {error:.5f}" for part, error in gaps.items())
    print(f"\n{name} heads of {size}: {figures}; bound {BOUND:.5f}")
    assert max(gaps.values()) < BOUND, figures
