"""Knobs: ids, ranges, what they do to the numbers."""

from __future__ import annotations

import pytest

from brim.errors import UsageError
from brim.tune.knobs import KNOBS, check, words


def test_what_narrows_the_numbers_is_not_lossless() -> None:
    lossy = {id for id, knob in KNOBS.items() if not knob.lossless}
    assert lossy == {"precision.tf32", "precision.autocast"}


def test_settings_within_their_ranges_pass_unchanged() -> None:
    settings = {"loader.num_workers": 0, "debug": False, "precision.tf32": "high"}
    assert check(settings) is settings


@pytest.mark.parametrize(
    ("id", "value"),
    [
        ("loader.num_workers", -1),
        ("loader.num_workers", 257),
        ("loader.num_workers", True),
        ("loader.num_workers", "4"),
        ("debug", 0),
        ("recompute", "some"),
    ],
)
def test_a_value_outside_its_range_names_the_knob_and_the_range(id: str, value: object) -> None:
    with pytest.raises(UsageError, match=id):
        check({id: value})  # type: ignore[dict-item]


def test_an_unknown_knob_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(UsageError, match=r"loader\.num_workers"):
        check({"loader.wrokers": 4})


def test_settings_are_said_in_words_and_a_flag_set_to_false_says_no() -> None:
    settings = {"loader.num_workers": 8, "liger": False, "data.tokens_per_row": 4096}
    assert words(settings) == "8 loader workers, no Liger kernels, data.tokens_per_row = 4096"


def test_a_value_may_have_words_of_its_own() -> None:
    assert words({"memory.flush": 0}) == "no empty_cache() and gc.collect() in the loop"
    assert words({"memory.flush": 50}).endswith("only every 50 steps")
    assert words({"debug": False}) == "debug modes off"


def test_every_choice_has_values_and_every_count_a_range() -> None:
    for knob in KNOBS.values():
        if knob.kind == "choice":
            assert all(knob.admits(value) for value in knob.choices)
        if knob.kind == "count":
            assert knob.admits(knob.low)
            assert not knob.admits(knob.low - 1)
            assert not knob.admits(knob.high + 1)
