"""The statistics of ``benchmarks/overhead.py``: costs that are put in come out."""

from __future__ import annotations

import importlib.util
import random
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest


@pytest.fixture(scope="module")
def overhead() -> ModuleType:
    path = Path(__file__).parents[1] / "benchmarks" / "overhead.py"
    spec = importlib.util.spec_from_file_location("overhead", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


HOOKS, SAMPLE, WRITE = 100e-6, 300e-6, 2000e-6  # seconds of the step or look that has one


def _pairs(rng: random.Random, count: int) -> list[dict[str, float]]:
    """Steps of 20 ms under noise with a tail of outliers a hundred times as wide, a sample in four
    of ten, and lines written in one of ten samples of a step with hooks."""
    pairs = []
    for _ in range(count):
        pair: dict[str, float] = {}
        for name in ("on", "off"):
            samples = int(rng.random() < 0.4)
            writes = int(samples and rng.random() < 0.1)
            noise = rng.gauss(0, 50e-6) * (100 if rng.random() < 0.02 else 1)
            cost = HOOKS * (name == "on") + SAMPLE * samples + WRITE * writes * (name == "on")
            pair |= {
                f"{name}_s": 0.02 + cost + noise,
                f"{name}_cpu_s": 0.02 + cost,
                f"{name}_samples": samples,
                f"{name}_writes": writes,
            }
        pairs.append(pair)
    return pairs


def test_hooks_samples_and_writes_are_told_apart(overhead: ModuleType) -> None:
    found = overhead._summary(_pairs(random.Random(0), 1200))["cpu_s"]
    assert found["hooks"][0] == pytest.approx(HOOKS, abs=1e-9)
    assert found["samples"][0] == pytest.approx(0.4 * SAMPLE, rel=0.1)
    assert found["writes"][0] == pytest.approx(0.04 * WRITE, rel=0.3)
    middle, low, high = found["total"]
    assert middle == pytest.approx(sum(found[part][0] for part in ("hooks", "samples", "writes")))
    assert low <= HOOKS + 0.4 * SAMPLE + 0.04 * WRITE <= high


def test_the_interval_holds_the_cost_of_hooks_in_95_of_100_tries_whatever_the_tails(
    overhead: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overhead, "DRAWS", 80)
    rng, held = random.Random(1), 0
    for _ in range(60):
        pairs = _pairs(rng, 120)
        wall = [p["on_s"] - p["off_s"] for p in pairs]
        _, low, high = overhead.intervals(pairs, wall)["hooks"]
        held += low <= HOOKS <= high
    assert held >= 0.85 * 60


def test_whole_runs_know_their_total_alone(overhead: ModuleType) -> None:
    runs = [{"on_s": 1.02, "off_s": 1.0, "on_cpu_s": 1.01, "off_cpu_s": 1.0}] * 5
    found = overhead._summary(runs)
    assert list(found["wall"]) == ["total"]
    assert found["wall"]["total"] == pytest.approx((0.02, 0.02, 0.02))


def test_the_sampler_goes_on_while_the_hooks_are_off_and_its_work_is_counted(
    overhead: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    module = ModuleType("sampling")

    class Sampler:
        owner = SimpleNamespace(write=lambda: calls.append("write"))

        def _sample(self, wall: float, late: float) -> None:
            calls.append(f"sample {wall} {late}")

    Sampler.__module__ = "sampling"
    monkeypatch.setitem(sys.modules, "sampling", module)
    sampler, hooks = Sampler(), SimpleNamespace(off=True, thread_cpu=7)
    counted = overhead.Samples(sampler, hooks)
    sampler._sample(0.05, 0.0)
    sampler.owner.write()
    assert (counted.taken, counted.written, calls) == (1, 1, ["sample 0.05 0.0", "write"])
    seen = vars(module)["_recorder"]
    assert (seen.off, seen.thread_cpu) == (False, 7)
