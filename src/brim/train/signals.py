"""SIGTERM and SIGUSR1 ask a run to save and stop; a second one, later, stops it at once."""

from __future__ import annotations

import os
import signal
import time
from types import FrameType, TracebackType
from typing import Any

STOPPED = 75
"""Exit code of a run that saved and stopped when asked: EX_TEMPFAIL, "try again later"."""
ASKING = (signal.SIGTERM, signal.SIGUSR1)
_SAME_S = 2.0
"""Signals so close are one request: schedulers signal every process, torchrun passes its own on."""


class StopRequest:
    """While entered, ``asked`` turns true at the first signal."""

    def __init__(self) -> None:
        self.number = 0
        """Of the signal; 0: none came."""
        self._at = 0.0
        self._before: dict[int, Any] = {}

    @property
    def asked(self) -> bool:
        return self.number != 0

    @property
    def signal(self) -> str:
        """Its name."""
        return name_of(self.number)

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
        now = time.monotonic()
        if not self.asked:
            self.number, self._at = number, now
        elif now - self._at > _SAME_S:
            os._exit(128 + number)


def name_of(number: int) -> str:
    return signal.Signals(number).name if number else ""


def exit_code(*, finished: bool) -> int:
    """Of a run that ended well.

    torchrun takes any code but 0 for a failure and starts all ranks again, which is not what a
    request to stop means; it never passes the code on either.
    """
    return 0 if finished or "TORCHELASTIC_RUN_ID" in os.environ else STOPPED
