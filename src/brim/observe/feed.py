"""What feeds the live view and the exporter: samples of devices and host, and the followed job."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from brim.observe.devices import Probe, Writer
from brim.record.devices import About, DeviceSample, HostSample, Line


class Feed:
    """One probe, whose samples go to a consumer and, when asked, to a file."""

    def __init__(
        self,
        probe: Probe,
        period_s: float,
        consume: Callable[[About, list[DeviceSample], HostSample | None], None],
        *,
        record: Path | None = None,
    ) -> None:
        self._probe = probe
        self._period_s = period_s
        self._consume = consume
        self._writer = Writer(record) if record is not None else None
        self._ticks = 0
        self.about = probe.about(period_s)

    @property
    def record_error(self) -> str:
        """Why recording ended; empty while it goes on."""
        return self._writer.error if self._writer is not None else ""

    def tick(self) -> None:
        """Take one sample and hand it on."""
        snapshot = self._probe.sample()
        new = self._probe.about_if_new(self._period_s)
        if new is not None:
            self.about = new
        self._consume(self.about, snapshot.devices, snapshot.host)
        if self._writer is not None and self._ticks % self._writer.stretch == 0:
            host = [snapshot.host] if snapshot.host is not None else []
            about: list[Line] = [new] if new is not None else []
            self._writer.write([*about, *snapshot.devices, *host])
        self._ticks += 1

    def first(self) -> None:
        """Two samples a second apart: rates and the host need an interval."""
        self.tick()
        time.sleep(1.0)
        self.tick()

    def close(self) -> None:
        with contextlib.suppress(Exception):  # leaving: a driver that fails now is nobody's news
            self._probe.close()
        if self._writer is not None:
            self._writer.close()
