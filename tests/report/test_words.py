"""How figures are worded, and that foreign text is harmless."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.report import examples

from brim.record.findings import Where
from brim.report import words


@given(st.text())
def test_cleaned_text_has_no_control_direction_or_line_break(text: str) -> None:
    cleaned = words.clean(text)
    assert all(unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp") for c in cleaned)
    # what was harmless is untouched
    if text.isascii() and text.isprintable():
        assert cleaned == text


@given(st.text())
def test_kept_lines_are_the_lines_of_the_text(text: str) -> None:
    kept = words.clean(text, keep_lines=True)
    assert kept.count("\n") == text.replace("\r\n", "\n").count("\n")


@pytest.mark.parametrize(
    ("low_high", "said"),
    [
        ((1.2, 1.5), "1.2–1.5× faster"),
        ((1.02, 1.08), "1.02–1.08× faster"),
        ((1.5, 1.5), "1.5× faster"),
        ((2.0, 11.0), "2.0–11.0× faster"),
        ((1.0, float("inf")), "gain not known"),
    ],
)
def test_a_gain_is_a_range_that_never_rounds_a_small_one_away(
    low_high: tuple[float, float], said: str
) -> None:
    assert words.gain(low_high) == said


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (39.0, "39.0"),
        (42_130.0, "42,100"),
        (0.64, "0.640"),
        (0.0, "0"),
        (1e-5, "1e-05"),
        (999.6, "1,000"),
    ],
)
def test_a_number_has_three_digits_that_mean_something(value: float, said: str) -> None:
    assert words.number(value) == said


def test_figures_keep_their_order_and_leave_out_what_is_not_finite() -> None:
    shown = words.figures({"mfu": 0.373, "step_s": 0.412, "gpu_util": float("nan")})
    assert shown == [("step", "412 ms"), ("MFU", "37.3 %")]


def test_a_metric_without_a_place_is_shown_under_its_own_name() -> None:
    shown = words.other_figures({"mfu": 0.4, "overhead": 0.01, "peak_memory_gib": 71.25})
    assert shown == [("peak memory gib", "71.2")]


def test_a_place_names_file_line_and_function() -> None:
    assert words.place(Where(file="a.py", line=3)) == "a.py:3"
    assert words.place(Where(file="a.py", line=3, function="f")) == "a.py:3 in f"


def test_settings_come_in_the_words_of_the_job_first() -> None:
    remedy = examples.input_bound().findings[0].remedies[0]
    names = [name for name, _ in words.ordered_settings(remedy, ["ms-swift", "hf-trainer"])]
    assert names[:3] == ["ms-swift", "hf-trainer", "torch"]
    assert sorted(names) == sorted(remedy.settings)


def test_a_price_says_whether_the_numbers_stay_the_same() -> None:
    first, second = examples.input_bound().findings[0].remedies
    assert words.price(first) == "lossless; memory: 0.4 GiB of host memory per worker"
    assert words.price(second) == "changes the numbers"
