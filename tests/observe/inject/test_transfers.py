"""Reads of device values: whose line is counted, and whose line a warning in one names."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from _brim_hooks import transfers  # isort: skip


class Recorder:
    """As much of a recorder as a read asks for."""

    def __init__(self) -> None:
        self.lines: dict[str, list[float]] = {}
        self.sums: dict[str, float] = {}

    def mine(self) -> bool:
        return True

    def add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value


class Tensor:
    is_cuda = True

    def item(self) -> float:
        # stacklevel 2 in Python is what PyErr_WarnEx(…, 1) is in C: the innermost Python frame
        warnings.warn("Converting a tensor to a scalar", UserWarning, stacklevel=2)
        return 1.5

    tolist = cpu = numpy = __bool__ = __int__ = __float__ = __index__ = item


@pytest.fixture
def armed(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_initialized=lambda: True)  # type: ignore[attr-defined]
    torch.compiler = SimpleNamespace(is_compiling=lambda: False)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(transfers, "_tensor", Tensor)
    found = Recorder()
    transfers.arm()
    monkeypatch.setattr(recorder, "current", found)
    yield found
    monkeypatch.setattr(recorder, "current", None)
    transfers.disarm()


def test_a_warning_inside_a_read_names_the_programs_own_line(armed: Recorder) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Tensor().item()
        line = sys._getframe().f_lineno - 1
    assert [(w.filename, w.lineno) for w in caught] == [(__file__, line)]


def test_a_warning_turned_into_an_error_reaches_the_program(armed: Recorder) -> None:
    with warnings.catch_warnings(), pytest.raises(UserWarning, match="to a scalar"):
        warnings.simplefilter("error")
        Tensor().item()


def test_other_warnings_keep_their_own_line(armed: Recorder) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.warn_explicit("x", UserWarning, "elsewhere.py", 7)
    assert [(w.filename, w.lineno) for w in caught] == [("elsewhere.py", 7)]


def test_a_read_is_counted_by_its_line_and_gives_its_value(armed: Recorder) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        values = [Tensor().item() for _ in range(3)]
        line = sys._getframe().f_lineno - 1
    assert values == [1.5, 1.5, 1.5]
    assert [(place, n) for place, (n, _) in armed.lines.items()] == [(f"read|{__file__}:{line}", 3)]


def test_disarming_leaves_the_class_and_the_warnings_as_they_were(
    monkeypatch: pytest.MonkeyPatch, recorder: Any
) -> None:
    before = (dict(Tensor.__dict__), warnings._showwarnmsg)  # type: ignore[attr-defined]
    torch = ModuleType("torch")
    torch.cuda = SimpleNamespace(is_initialized=lambda: True)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(transfers, "_tensor", Tensor)
    transfers.arm()
    assert Tensor.__dict__["item"] is not before[0]["item"]
    transfers.disarm()
    assert (dict(Tensor.__dict__), warnings._showwarnmsg) == before  # type: ignore[attr-defined]
