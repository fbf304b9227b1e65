"""What the values of options may be; argparse puts the option's name before the message."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable


def whole(what: str, least: int = 0) -> Callable[[str], int]:
    """A parser of whole numbers of ``what``, ``least`` or more."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text} is not a number of {what}")
        return int(text)

    return parse


def between(least: float, most: float, unit: str) -> Callable[[str], float]:
    """A parser of a quantity, bounds included."""

    def parse(text: str) -> float:
        value = _number(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not between {least:g} and {most:g} {unit}")
        return value

    return parse


def share(text: str) -> float:
    """``0.2`` or ``20%``, of a whole."""
    value = growth(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text} is more than the whole: give 0.2 or 20%")
    return value


def growth(text: str) -> float:
    """``0.05`` or ``5%``; it may be more than the whole."""
    value = _number(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no share: give 0.05 or 5%")
    return value


def _number(text: str) -> float:
    """NaN, which is between no bounds, for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan
