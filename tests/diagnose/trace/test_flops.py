"""Work from input sizes, by hand and against torch's own counter."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.diagnose.trace.flops import Roof, Work, elements, input_shapes, work


def of(operation: str, *shapes: list[int], dtype: str = "c10::BFloat16") -> Work | None:
    return work(operation, json.dumps(shapes), json.dumps([dtype] * len(shapes)))


def test_a_matrix_product_of_128_by_256_by_512_is_2_mkn() -> None:
    done = of("aten::mm", [128, 256], [256, 512])
    assert done == Work(2.0 * 128 * 256 * 512, 2.0 * (128 * 256 + 256 * 512 + 128 * 512))


def test_biased_batched_and_linear_products() -> None:
    assert of("aten::addmm", [512], [128, 256], [256, 512]).flops == 2 * 128 * 256 * 512  # type: ignore[union-attr]
    assert of("aten::bmm", [4, 8, 16], [4, 16, 32]).flops == 2 * 4 * 8 * 16 * 32  # type: ignore[union-attr]
    assert of("aten::linear", [2, 5, 16], [32, 16], [32]).flops == 2 * 10 * 16 * 32  # type: ignore[union-attr]


def test_attention_is_two_products_of_queries_and_keys() -> None:
    done = of("aten::_scaled_dot_product_flash_attention", [2, 4, 64, 32], [2, 4, 128, 32])
    assert done is not None and done.flops == 4 * 2 * 4 * 64 * 128 * 32


def test_a_patch_embedding_computes_each_patch_once() -> None:
    done = of("aten::conv3d", [900, 3, 2, 16, 16], [1024, 3, 2, 16, 16])
    assert done is not None and done.flops == 2 * 900 * 1024 * 3 * 2 * 16 * 16


def test_counts_agree_with_torchs_counter() -> None:
    torch = pytest.importorskip("torch")
    counter = pytest.importorskip("torch.utils.flop_counter").FlopCounterMode
    a, b = torch.randn(33, 47), torch.randn(47, 21)
    with counter(display=False) as count:
        torch.mm(a, b)
    assert count.get_total_flops() == of("aten::mm", [33, 47], [47, 21]).flops  # type: ignore[union-attr]


def test_a_roof_is_set_by_compute_or_by_memory() -> None:
    roof = Roof(flops_per_s=1e15, bytes_per_s=1e12)
    assert roof.seconds(Work(2e15, 1e9)) == (2.0, "compute")
    assert roof.seconds(Work(1e9, 3e12)) == (3.0, "memory")


def test_lists_of_tensors_count_their_elements() -> None:
    assert input_shapes("[[[2,3],[4]],[],[5]]") == [[10], [], [5]]
    assert elements("[[[2,3],[4]],[],[5]]") == 15


@given(st.text(max_size=40), st.text(max_size=40))
def test_hostile_sizes_give_no_work_and_no_error(dims: str, types: str) -> None:
    for operation in ("aten::mm", "aten::convolution", "aten::bmm", "aten::linear", "x"):
        work(operation, dims, types)


@given(st.recursive(st.one_of(st.integers(-5, 50), st.none(), st.text(max_size=3)), st.lists))
def test_odd_nested_sizes_give_no_error(value: object) -> None:
    for operation in ("aten::mm", "aten::addmm", "aten::conv2d", "aten::linear"):
        work(operation, json.dumps(value), "[]")
