"""Python that no rule knows, by where it stands between forward and the optimizer."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.live.records import (
    FORWARD,
    MAIN,
    TORCH,
    TRAIN,
    evidence,
    machine,
    seen,
    stack,
    steps,
)

from brim.diagnose.live import hosts, inputs
from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import Evidence

BACKWARD = stack(
    "7", (f"{TORCH}/autograd/graph.py", "_engine_run_backward"),
    (TRAIN, "train", 32, "loss.backward()"), MAIN, phase="backward",
)  # fmt: skip
UPDATE = stack(
    "8", (f"{TORCH}/optim/adam.py", "adam"), (TRAIN, "train", 34, "optimizer.step()"), MAIN,
    phase="optimizer",
)  # fmt: skip


def _at(line: int, text: str = "shuffle(rows)", function: str = "train") -> Any:
    """Own Python below the given line; forward is line 30, backward 32, the optimizer 34."""
    return stack(
        "9", (TRAIN, "shuffle", 90, "x += 1"), (TRAIN, function, line, text), MAIN,
    )  # fmt: skip


def _found(unknown: Any, seconds: float = 0.03) -> Evidence:
    samples = seen(("1", 0.04), ("7", 0.02), ("8", 0.01), ("9", seconds))
    return evidence(steps(50, cpu=0.1, samples=samples), BACKWARD, UPDATE, unknown)


def _clues(found: Evidence) -> list[Clue]:
    return inputs.clues(found, None, machine()) + hosts.clues(found, machine(), memory_stall=None)


@pytest.mark.parametrize(
    ("line", "kind"),
    [(28, "before the step"), (29, "before the step"), (31, "python"), (33, "python"),
     (35, "after the step")],
)  # fmt: skip
def test_a_line_is_placed_by_the_lines_of_forward_and_optimizer(line: int, kind: str) -> None:
    assert FORWARD.frames[2].line == 30
    assert kind in _found(_at(line)).seconds


@pytest.mark.parametrize(
    ("line", "cause"), [(28, "input.main-process"), (36, "host.periodic")]
)  # fmt: skip
def test_work_of_a_tenth_of_the_time_is_a_clue_with_its_line(line: int, cause: str) -> None:
    (clue,) = _clues(_found(_at(line)))
    assert (clue.cause, clue.confidence, clue.report_from) == (cause, "medium", 0.1)
    assert clue.seconds == pytest.approx(50 * 0.03)
    assert clue.where is not None


def test_the_loops_own_line_is_the_interpreters_work() -> None:
    assert "python" in _found(_at(28, "for x in loader:")).seconds
    assert _clues(_found(_at(28, "for x in loader:"))) == []


@pytest.mark.parametrize(
    ("text", "kind"),
    [("x = tiles[::8].float()", "python"), ("x = np.stack(rows)", "before the step")],
)
def test_a_line_of_the_loop_itself_may_be_torchs_arithmetic(text: str, kind: str) -> None:
    leaf = stack("9", (TRAIN, "train", 28, text), MAIN)
    assert kind in _found(leaf).seconds


def test_a_function_that_shows_no_order_of_a_step_tells_nothing() -> None:
    assert "python" in _found(_at(28, function="elsewhere")).seconds


def test_with_a_device_a_place_tells_nothing_since_any_line_may_wait_for_it() -> None:
    samples = seen(("1", 0.04), ("7", 0.02), ("8", 0.01), ("9", 0.03))
    lines = steps(50, cpu=0.1, samples=samples)
    for line, function in ((28, "train"), (36, "train"), (36, "accuracy")):
        found = evidence(
            lines, BACKWARD, UPDATE, _at(line, function=function), device={"name": "x"}
        )
        assert set(found.seconds) == {"compute", "python"}
