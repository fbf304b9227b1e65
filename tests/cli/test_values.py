"""Values of options: what is taken, and the words for what is not."""

from __future__ import annotations

import argparse

import pytest

from brim.cli.values import between, growth, share, whole


def test_whole_numbers_are_taken_from_the_least_on() -> None:
    assert [whole("steps")("0"), whole("ranks", 1)("1"), whole("ranks", 1)("128")] == [0, 1, 128]


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "1e3", "many", "", "½"])
def test_what_is_no_number_of_ranks_says_so(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=f"^{text} is not a number of ranks$"):
        whole("ranks", 1)(text)


def test_bounds_belong_to_what_lies_between_them() -> None:
    seconds = between(0.1, 3600, "seconds")
    assert [seconds("0.1"), seconds("3600"), seconds("1e1")] == [0.1, 3600, 10]


@pytest.mark.parametrize("text", ["0.09", "3601", "-1", "nan", "inf", "soon", ""])
def test_what_lies_outside_or_is_no_number_is_told_the_bounds(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"is not between 0\.1 and 3600 seconds"):
        between(0.1, 3600, "seconds")(text)


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0), ("0.2", 0.2), ("20%", 0.2), ("100%", 1), ("1", 1)]
)
def test_a_share_is_a_fraction_or_in_percent(text: str, value: float) -> None:
    assert share(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["20", "101%", "-1%", "nan", "inf", "%", "x", "5%%"])
def test_what_is_no_share_of_a_whole_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give 0"):
        share(text)


def test_growth_may_be_more_than_the_whole_but_has_an_end() -> None:
    assert [growth("150%"), growth("3")] == [1.5, 3]
    for text in ("inf", "-0.1", "nan"):
        with pytest.raises(argparse.ArgumentTypeError, match="is no share"):
            growth(text)
