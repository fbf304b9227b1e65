from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from brim.model.attention import BACKENDS, launch_bound, math_attention


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
    for backend, dtype, device in (("math", torch.float64, "cpu"), (name, torch.bfloat16, "cuda")):
        leaves = [t.to(device, torch.bfloat16).to(dtype).requires_grad_() for t in (q, k, v)]
        out = BACKENDS[backend](*leaves, boundaries.to(device), 1024, causal)
        out.backward(grad.to(device, torch.bfloat16).to(dtype))
        results.append([out.detach(), *(t.grad for t in leaves)])
    for expected, found in zip(*results, strict=True):
        error = (found.double().cpu() - expected).norm() / expected.norm()
        assert error < 0.01
