"""Sums over the window: where the training thread's time went."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.diagnose.live.records import FORWARD, MAIN, OWN, TRAIN, evidence, seen, stack, steps

from brim.diagnose.live.evidence import EXACT
from brim.record.steps import Step

SAVE = stack(
    "8", ("/venv/lib/python3.12/site-packages/safetensors/torch.py", "save_file"), MAIN,
    phase="save",
)  # fmt: skip
EVALUATE = stack("9", *FORWARD.frames[:-1], (TRAIN, "evaluate", 60, "model(x)"), MAIN)
THIEF = stack("7", (TRAIN, "Uploader.run", 80, "crc = ..."), phase="thief")


def test_times_with_hooks_around_them_are_exact_and_samples_split_the_rest() -> None:
    samples = seen(("1", 0.03), ("3", 0.01), ("2", 0.05))
    found = evidence(steps(10, input_wait=0.06, samples=samples))
    assert found.wall == pytest.approx(1.0)
    assert found.seconds["input"] == pytest.approx(0.6)  # not what the samples in it say
    assert found.seconds["compute"] == pytest.approx(0.4 * 3 / 4)
    assert found.seconds["python"] == pytest.approx(0.4 * 1 / 4)


def test_without_a_sample_what_lies_between_is_not_told_apart() -> None:
    found = evidence(steps(10, gc=0.02))
    assert found.seconds == pytest.approx({"gc": 0.2, "python": 0.8})


def test_without_a_sample_the_passes_that_brims_own_trainer_times_are_computing() -> None:
    found = evidence(steps(10, input_wait=0.02, backward=0.07))
    assert found.seconds == pytest.approx({"input": 0.2, "compute": 0.7, "python": 0.1})


def test_the_evaluation_that_it_times_is_evaluation() -> None:
    found = evidence(steps(10, evaluation=0.05, backward=0.04))
    assert found.seconds == pytest.approx({"evaluate": 0.5, "compute": 0.4, "python": 0.1})


def test_a_sample_whose_stack_was_lost_is_not_told_apart() -> None:
    found = evidence(steps(10, samples=seen(("404", 0.1))))
    assert found.seconds == pytest.approx({"python": 1.0})


def test_a_hooks_phase_says_what_happens_where_the_stack_alone_would_not() -> None:
    backward = stack("4", *OWN.frames, phase="backward")
    found = evidence(steps(10, samples=seen(("4", 0.1))), backward)
    assert found.seconds == pytest.approx({"compute": 1.0})


def test_evaluation_is_told_from_training_by_the_frames_around_the_same_forward_pass() -> None:
    found = evidence(steps(10, samples=seen(("1", 0.06), ("9", 0.04))), EVALUATE)
    assert found.seconds == pytest.approx({"compute": 0.6, "evaluate": 0.4})


def test_the_time_between_eval_and_train_raises_the_sampled_evaluation() -> None:
    found = evidence(steps(10, evaluation=0.05, samples=seen(("1", 0.09), ("9", 0.01))), EVALUATE)
    assert found.seconds == pytest.approx({"compute": 0.5, "evaluate": 0.5})


def test_stacks_of_other_threads_take_no_time_of_the_training_thread() -> None:
    found = evidence(steps(10, samples=seen(("1", 0.09), ("7", 0.09))), THIEF)
    assert found.seconds == pytest.approx({"compute": 1.0})
    assert [s.stack.id for s in found.thieves] == ["7"]
    assert [s.stack.id for s in found.sites] == ["1"]


def test_a_site_remembers_in_which_steps_it_was_seen() -> None:
    lines = steps(10)
    for position in (3, 7):
        lines[position].samples = seen(("8", 0.05))
        lines[position].save = 0.05
    found = evidence(lines, SAVE)
    assert found.of("save")[0].steps == [3, 7]
    assert found.seconds["save"] == pytest.approx(0.1)


def test_saving_that_no_hook_brackets_is_added_to_what_the_hooks_saw() -> None:
    """``torch.save`` has a hook; a checkpoint written by numpy is only seen in the stacks."""
    other = stack("6", (TRAIN, "save_weights", 70, "np.savez(path, **arrays)"), MAIN)
    found = evidence(steps(10, save=0.02, samples=seen(("1", 0.06), ("6", 0.02))), SAVE, other)
    assert found.seconds == pytest.approx({"save": 0.2 + 0.8 / 4, "compute": 0.6})


def test_shares_are_of_the_window() -> None:
    found = evidence(steps(10, input_wait=0.06))
    assert found.share("input") == pytest.approx(0.6)
    assert found.share("compile") == 0
    assert found.step_s == pytest.approx(0.1)


def test_an_empty_window_has_no_time_and_no_kinds() -> None:
    found = evidence([])
    assert (found.wall, dict(found.seconds), found.share("input")) == (0, {}, 0)


_SECONDS = st.floats(0, 10)


@st.composite
def random_steps(draw: st.DrawFn) -> list[Step]:
    """Steps as a broken clock, a lost stack or rounding could make them."""
    rows, t = [], 0.0
    for n in range(draw(st.integers(1, 8))):
        wall = draw(st.floats(1e-3, 10))
        t += wall
        fields: dict[str, Any] = {
            name: draw(_SECONDS) for name in draw(st.sets(st.sampled_from([*EXACT.values()])))
        }
        samples = draw(
            st.dictionaries(
                st.sampled_from("1234789"),
                st.tuples(st.integers(1, 9), _SECONDS, _SECONDS, _SECONDS),
                max_size=4,
            )
        )
        evaluation = draw(st.sampled_from([0.0, 0.1, 20.0]))
        rows.append(
            Step(
                n=n, t=t, wall=wall, clock="opt0", samples=samples, evaluation=evaluation, **fields
            )
        )
    return rows


@given(random_steps())
def test_kinds_sum_to_the_wall_time_and_none_is_negative_whatever_the_records_say(
    lines: list[Step],
) -> None:
    found = evidence(lines, SAVE, EVALUATE, THIEF)
    assert sum(found.seconds.values()) == pytest.approx(found.wall)
    assert min(found.seconds.values()) >= -1e-9
