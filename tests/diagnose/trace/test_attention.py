"""Dense masks: which of them make SDPA compute scores in vain, and how many."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.diagnose.trace import TraceContext, diagnose_traces
from brim.diagnose.trace.attention import TILE, skipped
from brim.record.findings import Diagnosis
from brim.record.kineto import Trace, read_trace

GEMM = "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NTN"
SDPA = "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7"
EFFICIENT = "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel)"
WHERE = "void at::native::elementwise_kernel<128, 4, at::native::where_kernel_impl>"
FIXTURE = (
    Path(__file__).parents[2] / "fixtures" / "traces" / "compute.attention--h200-vlm-mask.json.gz"
)

Read = Callable[..., Trace]


def attend(
    tape: Any,
    mask: list[int],
    *,
    queries: int = 2048,
    keys: int = 2048,
    us: float = 400.0,
    kernel: str = SDPA,
    inner: str = "aten::_cudnn_attention_forward",
    given_inside: list[int] | None = None,
) -> None:
    """One call of SDPA with its kernel; ``given_inside``: the mask as the kernel gets it."""
    query, key = [8, 32, queries, 128], [8, 32, keys, 128]
    with tape.op(
        "aten::scaled_dot_product_attention", **{"Input Dims": [query, key, key, mask, [], []]}
    ):
        dims = [query, key, key, mask if given_inside is None else given_inside, []]
        tape.run(inner, kernel, us, **{"Input Dims": dims})


def steps(tape: Any, body: Callable[[], None], *, causal: int = 0) -> None:
    """Four steps; ``causal``: how many positions are compared with one another before each."""
    for number in range(4):
        with tape.step(number):
            if causal:
                tape.run("aten::le", WHERE, 2.0,
                         **{"Input Dims": [[1, 1, 1, causal], [1, 1, causal, 1]]})  # fmt: skip
            for _ in range(10):
                tape.run("aten::mm", GEMM, 600.0)
                body()


def share(diagnosis: Diagnosis) -> float:
    return sum(e.share for e in diagnosis.account if e.cause == "compute.attention")


def test_a_causal_mask_of_2048_by_2048_wastes_15_of_32_tiles(tape: Any, read: Read) -> None:
    steps(tape, lambda: attend(tape, [8, 1, 2048, 2048]), causal=2048)
    diagnosis = diagnose_traces([read(tape)])
    assert [f.cause for f in diagnosis.findings] == ["compute.attention"]
    assert share(diagnosis) == pytest.approx(0.4 * 15 / 32, abs=0.005)
    assert "2,048 × 2,048" in diagnosis.findings[0].evidence[0]


@pytest.mark.parametrize(
    "mask",
    [[], [8, 1, 1, 2048], [2048], [8, 1, 2048, 1]],
    ids=["none", "of keys alone", "a vector", "of queries alone"],
)
def test_masks_that_cost_no_scores_are_no_finding(mask: list[int], tape: Any, read: Read) -> None:
    steps(tape, lambda: attend(tape, mask), causal=2048)
    assert share(diagnose_traces([read(tape)])) == 0.0


def test_one_query_over_many_keys_is_inference_and_no_finding(tape: Any, read: Read) -> None:
    steps(tape, lambda: attend(tape, [8, 1, 1, 2048], queries=1), causal=2048)
    assert share(diagnose_traces([read(tape)])) == 0.0


def test_a_mask_of_padding_spread_over_the_queries_is_not_causal(tape: Any, read: Read) -> None:
    """The kernel that saves memory gets any mask as queries × keys; the program's own says more."""
    steps(
        tape,
        lambda: attend(tape, [8, 1, 1, 2048], kernel=EFFICIENT, given_inside=[8, 32, 2048, 2048],
                       inner="aten::_efficient_attention_forward"),
        causal=2048,
    )  # fmt: skip
    assert share(diagnose_traces([read(tape)])) == 0.0


def test_a_square_mask_that_nothing_shows_to_be_causal_is_no_finding(tape: Any, read: Read) -> None:
    steps(tape, lambda: attend(tape, [8, 1, 2048, 2048]))
    assert share(diagnose_traces([read(tape)])) == 0.0
    # an order of other lengths is not this mask's
    assert share(diagnose_traces([read(_with_order(tape, 512))])) == 0.0


def _with_order(tape: Any, length: int) -> Any:
    tape.run("aten::tril", WHERE, 2.0, **{"Input Dims": [[length, length], []]})
    return tape


def test_a_triangle_and_grouped_keys_show_it_as_well(
    new_tape: Callable[..., Any], read: Read
) -> None:
    triangle, grouped = new_tape(), new_tape()
    _with_order(triangle, 2048)
    grouped.run("aten::expand", WHERE, 2.0, **{"Input Dims": [[8, 8, 1, 2048, 128], [], []]})
    for tape in (triangle, grouped):
        steps(tape, lambda tape=tape: attend(tape, [1, 1, 2048, 2048]))
        assert share(diagnose_traces([read(tape)])) > 0.15


def test_the_efficient_kernel_and_a_backward_waste_the_same(tape: Any, read: Read) -> None:
    def body() -> None:
        attend(tape, [8, 1, 2048, 2048], kernel=EFFICIENT,
               inner="aten::_efficient_attention_forward",
               given_inside=[8, 32, 2048, 2048])  # fmt: skip
        tensor = [8, 2048, 32, 128]
        dims = [tensor, tensor, tensor, tensor, [8, 32, 2048, 2048], tensor]
        tape.run("aten::_efficient_attention_backward", EFFICIENT, 600.0, **{"Input Dims": dims})

    steps(tape, body, causal=2048)
    assert share(diagnose_traces([read(tape)])) == pytest.approx(1000 / 1600 * 15 / 32, abs=0.01)


def test_what_turns_the_mask_into_a_bias_comes_back_whole(tape: Any, read: Read) -> None:
    def body() -> None:
        query = [8, 32, 2048, 128]
        dims = {"Input Dims": [query, query, query, [8, 1, 2048, 2048], [], []]}
        with tape.op("aten::scaled_dot_product_attention", **dims):
            tape.run("aten::where", WHERE, 100.0, **{"Input Dims": [[8, 1, 2048, 2048], [], []]})
            tape.run("aten::_cudnn_attention_forward", SDPA, 300.0, **dims)

    steps(tape, body, causal=2048)
    expected = (100 + 300 * 15 / 32) / 1000
    assert share(diagnose_traces([read(tape)])) == pytest.approx(expected, abs=0.01)


def test_padding_is_not_counted_in_what_attention_already_lost(tape: Any, read: Read) -> None:
    steps(tape, lambda: attend(tape, [8, 1, 2048, 2048]), causal=2048)
    trace = read(tape)
    plain, padded = (diagnose_traces([trace], context=TraceContext(padding=p)) for p in (0.0, 0.25))
    parts = {e.cause: e.share for e in padded.account if e.part == "busy-lost"}
    assert parts["compute.attention"] == pytest.approx(share(plain))
    busy = sum(e.share for e in padded.account if e.part in ("useful", "busy-lost"))
    assert parts["compute.padding"] == pytest.approx(
        0.25 * (busy - parts["compute.attention"]), abs=1e-6
    )


def test_sizes_that_make_no_sense_give_no_error(tape: Any, read: Read) -> None:
    for dims in ([], [[]], [[], []], [[1]], [[], [], [], [7, 7]], "x", [[2048, 2048]]):
        for name in ("le", "tril", "expand", "scaled_dot_product_attention",
                     "_cudnn_attention_forward"):  # fmt: skip
            for _ in range(2):
                tape.run(f"aten::{name}", SDPA, 50.0, **{"Input Dims": dims})
    assert share(diagnose_traces([read(tape)])) == 0.0


@given(st.integers(1, 100_000))
def test_the_share_equals_a_count_of_tiles_above_the_diagonal(length: int) -> None:
    tiles = -(-length // TILE)
    if tiles <= 64:
        above = int(np.triu(np.ones((tiles, tiles)), 1).sum())
        assert skipped(length) == pytest.approx(above / tiles**2)
    assert 0.0 <= skipped(length) < 0.5


def test_a_padded_model_on_an_h200_loses_14_percent_to_its_masks() -> None:
    """36 layers × (2,537 × 2,537, batch 8, 32 heads of 128), forward and backward: 469 ms of
    attention in a step of 1.61 s; 19 of 40 tiles lie above the diagonal."""
    diagnosis = diagnose_traces([read_trace(FIXTURE)])
    assert share(diagnosis) == pytest.approx(0.469 / 1.609 * 19 / 40, abs=0.005)
    low, high = diagnosis.findings[0].gain
    assert 1.05 < low < high == pytest.approx(1 / (1 - share(diagnosis)), abs=0.01)
