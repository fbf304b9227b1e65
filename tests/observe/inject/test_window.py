"""Which steps are measured without the debug modes of the program."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest


class _Off:
    """Counts how often modes were switched off and put back."""

    entered = left = 0

    def __init__(self, profiler: bool = False) -> None:
        self.profiler = profiler

    def __enter__(self) -> _Off:
        _Off.entered += 1
        return self

    def __exit__(self, *exc: object) -> None:
        _Off.left += 1


class _Recorder:
    def __init__(self) -> None:
        self.sums: dict[str, Any] = {}


def _marks(
    monkeypatch: pytest.MonkeyPatch,
    step_s: float,
    profiled: Callable[[int], bool] | None = None,
) -> list[int]:
    """For each of 400 steps whether it was one without the modes; 2: without the profiler, too.

    ``profiled``: in which steps the program's profiler is on, instead of a profile function.
    """
    from _brim_hooks import interpreter, window

    monkeypatch.setattr(interpreter, "DebugOff", _Off)
    modes = [] if profiled else ["sys.setprofile(x)"]
    monkeypatch.setattr(interpreter, "switchable_modes", lambda: modes)
    monkeypatch.setattr(interpreter, "profiler_pauses", lambda: True)
    monkeypatch.setattr(_Off, "entered", 0)
    monkeypatch.setattr(_Off, "left", 0)
    clock = 0.0
    monkeypatch.setattr(window, "now", lambda: clock)
    plan, found = window._Plan(), []
    for n in range(1, 401):
        clock = n * step_s
        lasting = ["torch.profiler"] if profiled and profiled(n) else []
        monkeypatch.setattr(interpreter, "lasting_modes", lambda lasting=lasting: lasting)
        rec: Any = _Recorder()
        window._probing(rec, plan, n)
        found.append(rec.sums.get("probe", 0))
    assert _Off.entered == _Off.left
    return found


def _goes(marks: list[int]) -> list[int]:
    return [len(list(run)) for probed, run in itertools.groupby(marks) if probed]


@pytest.mark.parametrize(
    ("step_s", "goes"),
    [
        (1.0, 1),  # six steps of a second are enough
        (0.03, 3),
        (0.01, 7),
        (0.001, 16),  # and of a millisecond no more than a hundred
    ],
)
def test_short_steps_are_measured_without_the_modes_more_often(
    monkeypatch: pytest.MonkeyPatch, step_s: float, goes: int
) -> None:
    from _brim_hooks.window import PROBED

    assert _goes(_marks(monkeypatch, step_s)) == [PROBED] * goes


def test_between_two_such_goes_the_modes_are_on_for_as_many_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from _brim_hooks.window import PROBED

    runs = [
        (probed, len(list(run)))
        for probed, run in itertools.groupby(_marks(monkeypatch, step_s=0.01))
    ]
    assert all(length == PROBED for probed, length in runs[1:-1] if not probed)


def test_a_profiler_that_is_on_in_every_step_pauses_in_the_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from _brim_hooks.window import PROBED

    marks = _marks(monkeypatch, 0.03, profiled=lambda n: True)
    assert set(marks) == {0, 2}
    assert _goes(marks) == [PROBED] * 3


def test_a_profiler_with_a_schedule_is_left_to_its_schedule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert set(_marks(monkeypatch, 0.03, profiled=lambda n: n % 10 < 6)) == {0}
