"""The training process's side of a loader: which waits compute."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest


@pytest.fixture
def account(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Waits of (seconds, CPU seconds) in steps of 20 ms: the CPU seconds that each is given."""
    from _brim_hooks import loader

    rec = recorder.recorder()
    asked = 0

    def run(waits: list[tuple[float, float]], *, in_this_process: bool = False) -> list[float]:
        nonlocal asked
        asked, found, iterator = 0, [], SimpleNamespace()
        for n, (wall, cpu) in enumerate(waits):
            rec.n, rec.wall = n, 0.02
            before = rec.sums["input_cpu"]
            begun = 1.0 if rec.asks() else None
            asked += begun is not None
            monkeypatch.setattr(rec, "cpu", lambda cpu=cpu: 1.0 + cpu)
            loader._account(rec, iterator, wall, begun, in_this_process)
            found.append(rec.sums["input_cpu"] - before)
        run.asked = asked  # type: ignore[attr-defined]
        return found

    return run


def test_a_small_wait_is_measured_in_every_fourth_step_and_taken_as_like_it_between(
    account: Any,
) -> None:
    found = account([(0.002, 0.0015)] * 8)
    assert found == pytest.approx([0.0015] * 8)
    assert account.asked == 2


def test_a_long_wait_is_measured_in_each_step(account: Any) -> None:
    waits = [(0.006, 0.001 * (n % 3)) for n in range(8)]
    assert account(waits) == pytest.approx([cpu for _, cpu in waits])
    assert account.asked == 8


def test_a_batch_that_is_there_at_once_is_not_asked_about(account: Any) -> None:
    assert account([(0.0002, 0.0001)] * 8) == pytest.approx([0.0001, *[0.0002] * 7])
    assert account.asked == 1


@pytest.mark.parametrize(("in_this_process", "cpu"), [(False, 0.0), (True, 0.015)])
def test_a_surprise_waits_for_workers_and_computes_in_this_process(
    account: Any, in_this_process: bool, cpu: float
) -> None:
    waits = [(0.0002, 0.0001), (0.0002, 0.0001), (0.015, 0.014)]
    assert account(waits, in_this_process=in_this_process)[2] == pytest.approx(cpu)
