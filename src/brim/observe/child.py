"""A command that runs under the live view: its output goes to a file, its end is waited for."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from brim.observe import launch

STEPS = 1_000_000
"""Steps that the hooks follow; their files are bounded by themselves."""


class Child:
    """The user's command with the hooks in it, in a session of its own.

    A session, so that Ctrl-C in the view's terminal is the view's alone.
    """

    def __init__(self, command: Sequence[str], folder: Path, *, output: Path | None) -> None:
        """``output``: where its streams go; None: they stay the terminal's."""
        options = launch.Options(steps=STEPS, warmup=0, profile=False)
        env = launch.environment(folder, options)
        self._file = output.open("wb") if output is not None else None
        self._process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL if self._file is not None else None,
            stdout=self._file,
            stderr=subprocess.STDOUT if self._file is not None else None,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        return self._process.poll() is not None

    def wait(self) -> int:
        """Until it ends; the first Ctrl-C here is passed on to it, a second one kills it."""
        sent = signal.SIGINT
        while True:
            try:
                code = self._process.wait()
                break
            except KeyboardInterrupt:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sent)
                sent = signal.SIGKILL
        if self._file is not None:
            self._file.close()
        return code if code >= 0 else 128 - code
