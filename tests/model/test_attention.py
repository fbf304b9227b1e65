from __future__ import annotations

import sys
import types

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.model.attention import BACKENDS, Attention, launch_bound, math_attention


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, lengths: list[int], causal: bool
) -> torch.Tensor:
    """Softmax attention in float64, document by document and head by head."""
    out, start = torch.zeros_like(q, dtype=torch.float64), 0
    groups = q.shape[1] // k.shape[1]
    for length in lengths:
        rows = slice(start, start + length)
        for head in range(q.shape[1]):
            scores = q[rows, head].double() @ k[rows, head // groups].double().t()
            scores /= q.shape[2] ** 0.5
            if causal:
                scores.masked_fill_(torch.ones(length, length).triu(1).bool(), float("-inf"))
            out[rows, head] = scores.softmax(-1) @ v[rows, head // groups].double()
        start += length
    return out


def inputs(
    lengths: list[int], heads: int, kv_heads: int, size: int, seed: int = 0
) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    shape = (sum(lengths), heads, size), (sum(lengths), kv_heads, size)
    q, k, v = (torch.randn(s, generator=generator) for s in (shape[0], shape[1], shape[1]))
    return q, k, v, torch.tensor([0, *lengths]).cumsum(0).int()


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
    assert torch.allclose(found.double(), reference(q, k, v, lengths, causal), atol=1e-6)


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
        q, k, v, out, dout, lse, *, causal, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
    ):  # type: ignore[no-untyped-def]
        assert lse.shape == (q.shape[1], q.shape[0]) and out.shape == q.shape
        # an operator runs below autograd, so the gradient is written out
        groups, scale = q.shape[1] // k.shape[1], q.shape[2] ** -0.5
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
    q, k, v, boundaries = inputs([5, 7], 4, 2, 8)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(
        torch.ops.brim.fa4_forward, (q, k, v, boundaries, 128, True), test_utils=checks
    )
    out, lse = torch.ops.brim.fa4_forward(q, k, v, boundaries, 128, True)
    torch.library.opcheck(
        torch.ops.brim.fa4_backward,
        (out, q, k, v, out, lse, boundaries, 128, True),
        test_utils=checks,
    )


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", ["fa4", "varlen", "efficient"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size", "causal"),
    [(8, 2, 128, True), (4, 4, 64, False), (4, 4, 72, False)],
)
def test_on_a_gpu_outputs_and_gradients_equal_the_reference(
    name: str, heads: int, kv_heads: int, size: int, causal: bool
) -> None:
    if name == "fa4":
        pytest.importorskip("flash_attn.cute")
    lengths = [130, 1, 517, 64]
    q, k, v, boundaries = inputs(lengths, heads, kv_heads, size)
    grad = torch.randn(q.shape, generator=torch.Generator().manual_seed(1))
    results = []
    for backend, dtype, device in (
        ("math", torch.float64, "cpu"),
        ("math", torch.bfloat16, "cuda"),
        (name, torch.bfloat16, "cuda"),
    ):
        leaves = [t.to(device, torch.bfloat16).to(dtype).requires_grad_() for t in (q, k, v)]
        out = BACKENDS[backend](*leaves, boundaries.to(device), 1024, causal)
        out.backward(grad.to(device, torch.bfloat16).to(dtype))
        results.append([t.double().cpu() for t in (out.detach(), *(t.grad for t in leaves))])
    for part, expected, plain, found in zip(("out", "dq", "dk", "dv"), *results, strict=True):
        error, allowed = ((t - expected).norm() / expected.norm() for t in (found, plain))
        # kernels round the probabilities to bfloat16, which the plain product does too
        assert error < 2 * allowed + 1e-3, part
