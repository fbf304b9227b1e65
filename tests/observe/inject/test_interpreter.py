"""Garbage collection, tracers, anomaly mode."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def armed(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A recorder with the collection hooks in place."""
    from _brim_hooks import interpreter

    monkeypatch.setattr(gc, "collect", gc.collect)
    before = list(gc.callbacks)
    interpreter.arm()
    rec = recorder.recorder()
    assert rec is not None
    yield rec
    gc.callbacks[:] = before


def test_a_collection_that_the_program_asks_for_is_told_from_an_automatic_one(armed: Any) -> None:
    assert gc.collect() >= 0
    gc.collect(1)
    assert armed.sums["collect_n"] == 2
    assert armed.sums["collect"] > 0
    (place,) = {p for p in armed.lines if __file__ in p} and {
        p.partition("|")[0] for p in armed.lines
    }
    assert place == "collect"
    before = armed.sums.get("gc_n", 0)
    keep = [[] for _ in range(200_000)]  # allocations make collections
    assert armed.sums.get("gc_n", 0) > before
    assert len(keep) == 200_000


def test_collections_leave_the_phase_as_it_was(armed: Any) -> None:
    armed.phase = "backward"
    gc.collect()
    assert armed.phase == "backward"


def test_nothing_is_counted_after_the_end(recorder: Any, armed: Any) -> None:
    armed.finish("done")
    armed.sums.clear()  # an automatic collection may have come while it was writing
    gc.collect()
    assert armed.sums == {}


def _tracer(frame: Any, event: str, arg: Any) -> None:
    return None


def test_debug_modes_are_named_and_switched_off_and_on_again_as_they_were() -> None:
    import torch
    from _brim_hooks.interpreter import DebugOff, debug_modes

    before = sys.gettrace(), sys.getprofile()
    torch.autograd.set_detect_anomaly(True, check_nan=False)
    sys.setprofile(_tracer)
    try:
        modes = debug_modes()
        assert "torch.autograd.set_detect_anomaly(True)" in modes
        assert any(m.startswith("sys.setprofile(_tracer") and __file__ in m for m in modes)
        with DebugOff():
            assert not torch.is_anomaly_enabled()
            assert sys.getprofile() is None
        assert torch.is_anomaly_enabled()
        assert not torch.is_anomaly_check_nan_enabled()
        assert sys.getprofile() is _tracer
    finally:
        torch.autograd.set_detect_anomaly(False)
        sys.settrace(before[0])
        sys.setprofile(before[1])


def test_torchs_profiler_pauses_and_goes_on_with_what_it_has_gathered() -> None:
    import torch
    from _brim_hooks.interpreter import DebugOff, profiler_pauses

    if not profiler_pauses():
        pytest.skip("this torch cannot pause its profiler, or has a device")
    x = torch.ones(2)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        torch.add(x, 1)
        with DebugOff(profiler=True):
            torch.mul(x, 2)
        torch.sub(x, 1)
    seen = {event.key for event in profiler.key_averages()}
    assert {"aten::add", "aten::sub"} <= seen
    assert "aten::mul" not in seen


def test_a_profiler_and_tracemalloc_are_named_and_never_switched_off() -> None:
    import tracemalloc

    import torch
    from _brim_hooks.interpreter import DebugOff, lasting_modes, switchable_modes

    assert lasting_modes() == []
    tracemalloc.start()
    try:
        with torch.profiler.profile(with_stack=True):  # follows Python by a hook in C
            assert lasting_modes() == ["torch.profiler", "tracemalloc"]
            assert not [m for m in switchable_modes() if "settrace" not in m]
            with DebugOff():
                assert lasting_modes() == ["torch.profiler", "tracemalloc"]
        assert lasting_modes() == ["tracemalloc"]
    finally:
        tracemalloc.stop()
