"""What benchmarks/train_quality.py claims, on tiny shapes."""

from __future__ import annotations

import pytest
from benchmarks import train_quality as quality


def curves(*words: str) -> dict[str, list[float]]:
    said: list[str] = []
    found = quality.run(quality.arguments(["--dry", *words]), said.append)
    assert all("left out" not in line for line in said), said
    return found


def test_in_float32_fifteen_steps_have_the_losses_of_transformers_to_1e_5() -> None:
    found = curves("--steps", "15", "--float32", "--only", "masters,transformers")
    ours, theirs = found["masters"], found["transformers"]
    assert ours == pytest.approx(theirs, rel=1e-5)
    assert ours[-1] < ours[0] - 0.1  # weights have moved, so the updates were compared too


def test_cheaper_states_stay_within_a_hundredth_of_a_nat_where_plain_rounding_does_not() -> None:
    found = curves("--steps", "40", "--only", "masters,rounded,8bit,plain")
    gaps = quality.distances(found)
    assert abs(gaps["rounded"]["end"]) < 0.01
    assert abs(gaps["8bit"]["end"]) < 0.01
    assert gaps["plain"]["end"] > 0.02


def test_distances_are_those_of_the_curves_written_down() -> None:
    made = {
        "masters": [3.0] * 10 + [1.0] * 10,
        "reordered": [3.1] * 10 + [1.0] * 10,
        "fp8": [3.0] * 10 + [1.2, 1.4] * 5,
    }
    found = quality.distances(made)
    assert found["fp8"]["end"] == pytest.approx(0.3)
    assert found["fp8"]["widest"] == pytest.approx(0.3)
    assert found["fp8"]["rms"] == pytest.approx((0.5 * (0.04 + 0.16) / 2) ** 0.5)
    assert found["reordered"]["widest"] == pytest.approx(0.1)
    assert found["reordered"]["noises"] == pytest.approx(1.0)
    assert quality.distances({"fp8": [1.0]}) == {}
