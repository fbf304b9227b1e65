"""What Python itself does to the training thread: garbage collection, tracers, anomaly mode."""

from __future__ import annotations

import functools
import gc
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from _brim_hooks import recorder as _r
from _brim_hooks.recorder import Recorder

now = _r.now


class _Collections:
    """Automatic collections go to ``gc``, those that the loop asks for to ``collect``."""

    def __init__(self) -> None:
        self.started: float | None = None
        self.asked = False
        self.outer = ""

    def called(self, phase: str, info: dict[str, Any]) -> None:
        rec = _r.current
        if rec is None or not rec.mine():
            return
        if phase == "start":
            self.started, self.outer = now(), rec.phase
            rec.phase = "collect" if self.asked else "gc"
        elif self.started is not None:
            rec.phase = self.outer
            name = "collect" if self.asked else "gc"
            rec.add(name, now() - self.started)
            rec.add(name + "_n", 1)
            rec.add("gc_generation_2", int(info.get("generation") == 2))
            self.started = None

    def wrap(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def collect(*args: Any, **kwargs: Any) -> Any:
            rec = _r.current
            if rec is None or not rec.mine():
                return original(*args, **kwargs)
            self.asked = True
            try:
                return original(*args, **kwargs)
            finally:
                self.asked = False
                note_caller(rec, "collect")

        return collect


def arm() -> None:
    collections = _Collections()
    gc.callbacks.append(_r.guarded(collections.called))
    gc.collect = collections.wrap(gc.collect)


@_r.guarded
def note_caller(rec: Recorder, what: str) -> None:
    """Remember which of the user's lines asked for it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and "_brim_hooks" in frame.f_code.co_filename:
        frame = frame.f_back
    if frame is not None:
        place = "%s|%s:%d" % (what, frame.f_code.co_filename, frame.f_lineno)
        entry = rec.lines.setdefault(place, [0, 0.0])
        entry[0] += 1


def debug_modes() -> list[str]:
    """What is switched on that slows every step, as seen from the training thread."""
    return switchable_modes() + lasting_modes()


def lasting_modes() -> list[str]:
    """Modes that brim does not switch off as others, because the program has them gather something.
    Asked for after every step: where the program switches them itself, its steps tell the cost."""
    found = []
    profiler, tracemalloc = sys.modules.get("torch._C._autograd"), sys.modules.get("tracemalloc")
    if profiler is not None and profiler._profiler_enabled():
        found.append("torch.profiler")
    if tracemalloc is not None and tracemalloc.is_tracing():
        found.append("tracemalloc")
    return found


def switchable_modes() -> list[str]:
    """Modes that change no number: without them for a few steps, the run goes on as it would."""
    torch = sys.modules.get("torch")
    found = []
    trace, profile = sys.gettrace(), _profile()
    if trace is not None:
        found.append("sys.settrace(%s)" % _name(trace))
    if profile is not None:
        found.append("sys.setprofile(%s)" % _name(profile))
    found += _monitors()
    if torch is not None:
        if torch.is_anomaly_enabled():
            found.append("torch.autograd.set_detect_anomaly(True)")
        if torch.is_deterministic_algorithms_warn_only_enabled():
            found.append("torch.use_deterministic_algorithms(warn_only=True)")
    return found


def _monitors() -> "list[str]":
    """Debuggers, coverage and profilers that use ``sys.monitoring`` (Python 3.12 and later)."""
    monitoring = getattr(sys, "monitoring", None)
    if monitoring is None:
        return []
    tools = ("DEBUGGER_ID", "COVERAGE_ID", "PROFILER_ID")
    names = [monitoring.get_tool(getattr(monitoring, tool)) for tool in tools]
    return ["sys.monitoring(%s)" % name for name in names if name]


def _name(function: Any) -> str:
    code = getattr(function, "__code__", None)
    where = "%s:%d" % (code.co_filename, code.co_firstlineno) if code is not None else ""
    return "%s %s" % (getattr(function, "__qualname__", type(function).__name__), where)


class DebugOff:
    """Switch tracers and anomaly mode off for some steps, to measure what they cost.

    They change no number that the training computes, so the run goes on as it would have; all is
    put back as it was.  ``profiler``: torch's profiler pauses, too; its trace lacks those steps.
    """

    def __init__(self, profiler: bool = False) -> None:
        self.profiler = profiler

    def __enter__(self) -> "DebugOff":
        torch = sys.modules["torch"]
        self.trace, self.profile = sys.gettrace(), _profile()
        self.anomaly = torch.is_anomaly_enabled()
        self.check = getattr(torch, "is_anomaly_check_nan_enabled", lambda: True)()
        if self.anomaly:
            torch.autograd.set_detect_anomaly(False)
        sys.settrace(None)
        _set_profile(self.profile, on=False)
        if self.profiler:
            _collect(False)
        return self

    def __exit__(self, *exc: Any) -> None:
        torch = sys.modules["torch"]
        if self.anomaly:
            torch.autograd.set_detect_anomaly(True, check_nan=self.check)
        sys.settrace(self.trace)
        _set_profile(self.profile, on=True)
        if self.profiler:
            _collect(True)


def profiler_pauses() -> bool:
    """Whether torch's profiler can stop collecting and go on; beside a device's activities its
    trace would mix up tracks."""
    torch, profiler = sys.modules["torch"], sys.modules.get("torch._C._autograd")
    return hasattr(profiler, "_toggle_collection_dynamic") and not torch.cuda.is_initialized()


def _collect(on: bool) -> None:
    profiler: Any = sys.modules["torch._C._autograd"]
    if profiler._profiler_enabled():  # the program may have ended it meanwhile
        kinds: Any = sys.modules["torch._C._profiler"].ProfilerActivity
        profiler._toggle_collection_dynamic(on, {kinds.CPU})


def _profile() -> Any:
    """The profile function, if it can be taken away and given back: not the one in C with which
    torch's profiler follows Python."""
    profile = sys.getprofile()
    return profile if callable(profile) or hasattr(profile, "disable") else None


def _set_profile(profile: Any, *, on: bool) -> None:
    """cProfile's object is no function: ``sys.setprofile`` would call it at the next event."""
    if profile is None:
        return
    if callable(profile):
        sys.setprofile(profile if on else None)
    elif on:
        profile.enable()
    else:
        profile.disable()
