"""How long a rank was busy in a step before it met the others."""

from __future__ import annotations

import time
from collections import deque

import torch


class Arrival:
    """Marks where ranks go apart, after an update, and where they may wait for each other again.

    On a CUDA device both are events; a step's time is known some steps later, and asking for it
    never waits.  With sharded weights the ranks meet at every block, so what is seen there is
    little more than who waits for rows.
    """

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._event: torch.cuda.Event | None = None
        self._events: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()
        self._began = time.monotonic()
        self._seconds = 0.0

    def apart(self) -> None:
        if self._cuda:
            self._event = _now()
        self._began = time.monotonic()

    def meet(self) -> None:
        if not self._cuda:
            self._seconds = time.monotonic() - self._began
        elif self._event is not None:
            self._events.append((self._event, _now()))
            self._event = None

    def seconds(self) -> float:
        """Of the last step that is known."""
        while self._events and self._events[0][1].query():
            began, met = self._events.popleft()
            self._seconds = began.elapsed_time(met) / 1e3
        return self._seconds


def _now() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
