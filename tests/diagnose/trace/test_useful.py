"""FLOPs of a step by recorded sizes, against closed figures."""

from __future__ import annotations

from pathlib import Path

import pytest

from brim.diagnose.trace.context import TraceContext
from brim.diagnose.trace.rank import Rank
from brim.diagnose.trace.useful import flops_per_step, share_of_attainable, utilisation
from brim.record.kineto import read_trace

RUN = Path(__file__).parents[2] / "fixtures" / "runs" / "h200-item-innocent"
# four blocks of width 4096 (12 h² weights each) and a head of 8193 rows, on 8 × 1024 tokens
TOKENS, WIDTH, LAYERS, HEAD, LENGTH = 8 * 1024, 4096, 4, 8193, 1024


def _closed() -> float:
    linear = 2 * TOKENS * LAYERS * 12 * WIDTH**2
    head = 2 * 8 * (LENGTH - 1) * HEAD * WIDTH
    attention = 4 * LAYERS * TOKENS * LENGTH * WIDTH
    return 3.0 * (linear + head + attention)


@pytest.fixture(scope="module")
def rank() -> Rank:
    trace = read_trace(RUN / "trace.rank0.json.gz")
    return Rank(trace, TraceContext(step_s=0.0957))


def test_a_recorded_step_of_a_decoder_has_the_flops_of_the_closed_formula(rank: Rank) -> None:
    assert flops_per_step(rank) == pytest.approx(_closed(), rel=0.01)


def test_its_utilisation_of_an_h200_is_43_percent(rank: Rank) -> None:
    expected = _closed() / 0.0957 / 989.5e12
    assert expected == pytest.approx(0.43, abs=0.03)
    assert utilisation(rank) == pytest.approx(expected, rel=0.02)


def test_padding_is_not_useful_and_a_given_count_is_taken_as_it_is(rank: Rank) -> None:
    plain = utilisation(rank)
    assert plain is not None
    rank.context = TraceContext(step_s=0.0957, padding=0.25)
    assert utilisation(rank) == pytest.approx(0.75 * plain)
    rank.context = TraceContext(step_s=0.1, padding=0.25, model_flops_per_step=5e12,
                                peak_flops=100e12)  # fmt: skip
    assert utilisation(rank) == pytest.approx(0.5)


def test_the_share_of_what_a_product_reached_on_the_machine_is_shown_beside_the_peaks(
    rank: Rank,
) -> None:
    rank.context = TraceContext(step_s=0.0957)
    of_peak = utilisation(rank)
    assert of_peak is not None and share_of_attainable(rank) is None  # never measured
    rank.context = TraceContext(step_s=0.0957, attainable_flops=683e12)
    assert share_of_attainable(rank) == pytest.approx(of_peak * 989.5 / 683, rel=1e-3)
    rank.context = TraceContext(step_s=0.0957, attainable_flops=1e12)
    assert share_of_attainable(rank) == 1.0
