"""Work that only long steps do is no part of training, whatever it is called."""

from __future__ import annotations

import pytest
from tests.diagnose.live.records import FORWARD, MAIN, SITE, TRAIN, evidence, seen, stack, steps

from brim.record.steps import Step

CALLBACK = (TRAIN, "on_step_end", 36, "out = model.generate(prompt)")
PREVIEW = stack("9", *FORWARD.frames[:-2], CALLBACK, MAIN)
BACKWARD = stack("8", *FORWARD.frames[:-2], CALLBACK, MAIN, phase="backward")
LIBRARY = stack("7", (f"{SITE}/pip/x.py", "run"), CALLBACK, MAIN)


def _previews(every: int, takes: float = 0.3, number: str = "9", count: int = 60) -> list[Step]:
    """Steps of 0.1 s, each of which ``every`` is longer by what line 36 takes."""
    lines = steps(count, samples=seen(("1", 0.1)))
    for position in range(every - 1, count, every):
        lines[position].wall += takes
        lines[position].samples = seen(("1", 0.1), (number, takes))
    return lines


def test_a_line_that_only_long_steps_pass_through_stops_training_now_and_then() -> None:
    found = evidence(_previews(every=5), PREVIEW)
    assert found.seconds["now and then"] == pytest.approx(12 * 0.3)
    assert found.seconds["compute"] == pytest.approx(60 * 0.1)


@pytest.mark.parametrize("number", ["8"])
def test_a_longer_backward_pass_is_training(number: str) -> None:
    assert set(evidence(_previews(5, number=number), BACKWARD).seconds) == {"compute"}


def test_a_stack_of_a_library_is_told_by_the_line_that_called_it() -> None:
    found = evidence(_previews(every=10, number="7"), LIBRARY)
    assert found.seconds["now and then"] == pytest.approx(6 * 0.3)


def test_a_line_in_every_step_is_training_however_long_some_steps_are() -> None:
    lines = _previews(every=5)
    for line in lines:
        line.samples = seen(("1", 0.05), ("9", line.wall - 0.05))
    assert set(evidence(lines, PREVIEW).seconds) == {"compute"}


def test_a_line_that_does_not_explain_why_steps_are_long_is_not_blamed() -> None:
    lines = _previews(every=5)
    for line in lines:
        if line.wall > 0.2:
            line.samples = seen(("1", 0.3), ("9", 0.1))
    assert set(evidence(lines, PREVIEW).seconds) == {"compute"}


@pytest.mark.parametrize(
    ("every", "count"),
    [
        (2, 60),  # half of the steps are long: that is what a step is
        (50, 60),  # once: it may be anything
        (3, 9),  # too few steps
    ],
)
def test_without_a_few_long_steps_among_many_short_ones_nothing_is_said(
    every: int, count: int
) -> None:
    assert set(evidence(_previews(every, count=count), PREVIEW).seconds) == {"compute"}
