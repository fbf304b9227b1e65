"""What slows Python itself: debug modes, and the garbage collector."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from typing import Any

from _brim_hooks.cure import Cure, safely

THRESHOLDS = (700, 10, 10)  # of CPython until 3.11: no job needs to collect more often


class Debug(Cure):
    """Tracers, ``sys.setprofile`` and autograd's anomaly mode are off (value ``False``)."""

    ids = ("debug",)
    never = "no debug mode is on"

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [("torch", self.patch)]

    def patch(self, torch: Any) -> None:
        original = torch.set_anomaly_enabled

        @functools.wraps(original)
        def set_anomaly_enabled(mode: bool, *args: Any, **kwargs: Any) -> Any:
            if self.value is False and mode:
                self.applied("torch.autograd.set_detect_anomaly(True)")
                mode = False
            return original(mode, *args, **kwargs)

        torch.set_anomaly_enabled = set_anomaly_enabled

    @safely
    def stepped(self, n: int) -> None:
        from _brim_hooks import interpreter

        if self.value is not False:
            return
        found = [
            m for m in interpreter.debug_modes() if m.startswith(("sys.set", "torch.autograd"))
        ]
        if found:
            interpreter.DebugOff().__enter__()  # for good
            self.applied(", ".join(found))


class Freeze(Cure):
    """Objects that are there after the first step are no longer looked at by collections.

    A job that has made collections more frequent than Python does gets Python's rhythm.
    """

    ids = ("gc.freeze",)
    never = "the garbage collector is off"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.was: tuple[int, int, int] | None = None
        self.steps = 0

    @safely
    def stepped(self, n: int) -> None:
        self.steps = n
        if n == 1:
            self.turn()

    @safely
    def switch(self, wanted: dict[str, Any]) -> None:
        self.wanted = wanted
        if self.steps:
            self.turn()

    def turn(self) -> None:
        if self.value and self.was is None and gc.isenabled():
            self.was = gc.get_threshold()
            gc.freeze()
            if 0 < self.was[0] < THRESHOLDS[0]:
                gc.set_threshold(*THRESHOLDS)
            self.applied("threshold %d" % self.was[0], "%d objects" % gc.get_freeze_count())
        elif not self.value and self.was is not None:
            gc.unfreeze()
            gc.set_threshold(*self.was)
            self.was = None


CURES = (Debug, Freeze)
