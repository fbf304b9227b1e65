"""SIGTERM and SIGUSR1 ask a run to save and stop; a second one stops it at once."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any

STOPPED = 75
"""Exit code of a run that saved and stopped when asked: EX_TEMPFAIL, "try again later"."""
ASKING = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While entered, ``asked`` turns true at the first signal."""

    def __init__(self) -> None:
        self.asked = False
        self.signal = ""
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopRequest:
        for number in ASKING:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self.asked:
            os._exit(128 + number)
        self.asked, self.signal = True, signal.Signals(number).name
