"""One short torch.profiler window in a run on a CUDA device, for the account at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

AFTER = 10
"""Steps before the window: compilation and warm-up are over."""
STEPS = 3
"""Steps in it; the first warms the profiler up, because starting it stalls the device once."""


class ProfilerWindow:
    """Call :meth:`after_step` after each step; the window opens and closes by itself."""

    def __init__(self, path: Path, *, enabled: bool, after: int = AFTER) -> None:
        self.path, self.enabled, self.after = path, enabled, after
        self._profiler: Any = None
        self._seen = 0
        self._inside = 0

    @property
    def open(self) -> bool:
        """Whether the step that comes next is profiled."""
        return self._profiler is not None

    def after_step(self) -> None:
        if not self.enabled:
            return
        self._seen += 1
        if self._profiler is None:
            if self._seen == self.after:
                self._start()
            return
        self._inside += 1
        self._profiler.step()
        if self._inside == STEPS:
            self.close()

    def close(self) -> None:
        """End a window that is still open, keeping what it has seen."""
        if self._profiler is not None:
            self._profiler.stop()
            self._profiler = None
        self.enabled = False

    def _start(self) -> None:
        if torch.autograd._profiler_enabled():
            self.enabled = False  # somebody measures this run already; two exclude each other
            return
        kinds = torch.profiler.ProfilerActivity
        activities = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else [])]
        self._profiler = torch.profiler.profile(
            activities=activities,
            record_shapes=True,
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=STEPS - 1, repeat=1),
            on_trace_ready=self._export,
        )
        self._profiler.start()

    def _export(self, seen: Any) -> None:
        """Under its final name only when it is whole."""
        part = self.path.with_name(f"part-{self.path.name}")
        seen.export_chrome_trace(str(part))
        part.replace(self.path)
