"""The statistics of ``benchmarks/overhead.py``: what its interval promises, it holds."""

from __future__ import annotations

import importlib.util
import random
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "overhead.py"
    spec = importlib.util.spec_from_file_location("overhead", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("count", "low", "high"),
    # tables of the sign test's interval for a median, two-sided 95 %
    [(6, 1, 6), (8, 1, 8), (10, 2, 9), (15, 4, 12), (20, 6, 15), (50, 18, 33)],
)
def test_the_interval_is_the_one_of_the_sign_test(
    overhead: ModuleType, count: int, low: int, high: int
) -> None:
    values = list(range(1, count + 1))
    random.Random(0).shuffle(values)
    middle, *ends = overhead.interval(values)
    assert (middle, ends) == ((count + 1) / 2, [low, high])


def test_two_thousand_pairs_are_no_float_too_large(overhead: ModuleType) -> None:
    middle, low, high = overhead.interval([float(i) for i in range(2001)])
    assert middle == 1000.0
    assert 1000.0 - low == high - 1000.0 == pytest.approx(0.98 * 2001**0.5, abs=1.0)


def test_the_interval_holds_the_median_in_95_of_100_tries_whatever_the_tails(
    overhead: ModuleType,
) -> None:
    rng = random.Random(1)
    held = 0
    for _ in range(400):
        # a shift of 2 under noise with a tail of outliers a hundred times as wide
        noise = [rng.gauss(0, 1) * (100 if rng.random() < 0.1 else 1) for _ in range(61)]
        _, low, high = overhead.interval([2.0 + n for n in noise])
        held += low <= 2.0 <= high
    assert held >= 0.92 * 400


def test_a_closed_gate_keeps_the_sampler_waiting_and_its_clock_at_rest(
    overhead: ModuleType,
) -> None:
    gate, answers = overhead.Gate(), []
    thread = threading.Thread(target=lambda: answers.append(gate.acquire(timeout=0.2)))
    thread.start()
    gate.turn(on=False)  # returns once the thread rests
    time.sleep(0.3)
    assert answers == []
    gate.turn(on=True)
    thread.join(10.0)
    assert answers == [False]
    gate.release()
    assert gate.acquire(timeout=5.0) is True
    assert not gate.locked()
