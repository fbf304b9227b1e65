"""Starts the user's command with brim's hooks in it, and stays out of its way.

The child keeps its working directory, its streams, its signals and its exit code.  All that is
added are a folder at the front of ``PYTHONPATH`` (a ``sitecustomize`` that needs nothing but the
standard library) and two variables that tell the hooks where to write.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from brim.errors import InputError

INJECT = Path(__file__).parent / "inject"

_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What the hooks are told."""

    steps: int = 100
    """Steps to measure."""
    warmup: int | None = None
    """Steps recorded before; None: the hooks' own margin."""
    least_s: float = 20.0
    """Measure at least this long, to see what comes once in a while."""
    profile: bool = True

    def encoded(self) -> str:
        options = {"steps": self.steps, "least_s": self.least_s, "profile": self.profile}
        if self.warmup is not None:
            options["warmup"] = self.warmup
        return json.dumps(options)


def environment(run_dir: Path, options: Options) -> dict[str, str]:
    """The child's environment: the user's own, with the hooks' folder first on PYTHONPATH."""
    env = dict(os.environ)
    paths = [str(INJECT), *filter(None, [env.get("PYTHONPATH")])]
    env["PYTHONPATH"] = os.pathsep.join(paths)
    env["BRIM_RUN_DIR"] = str(run_dir.resolve())
    env["BRIM_OPTIONS"] = options.encoded()
    return env


def resolve(command: Sequence[str]) -> list[str]:
    """The command with its program found on PATH.

    Raises :class:`InputError` when there is no such program, before anything is created.
    """
    program = shutil.which(command[0])
    if program is None:
        raise InputError(
            f"{command[0]}: no such command",
            hint="what follows -- is run without a shell: brim diagnose -- python train.py",
        )
    return [program, *command[1:]]


def run(command: Sequence[str], env: dict[str, str], stop: threading.Event | None = None) -> int:
    """Run to the end; the value is the exit code, 128 + n for a job that signal n ended.

    Ctrl-C reaches the job from the terminal, as it does without brim, and brim waits for it to
    end; other signals that would end brim are passed on.  Setting ``stop`` ends the job with
    SIGTERM, as a scheduler would.
    """
    child = subprocess.Popen(command, env=env)
    with _passing_signals(child):
        while True:
            try:
                code = child.wait(timeout=0.2 if stop is not None else None)
                break
            except KeyboardInterrupt:
                continue  # the job has received it too
            except subprocess.TimeoutExpired:
                if stop is not None and stop.is_set():
                    child.terminate()
                    stop = None
    return code if code >= 0 else 128 - code


@contextlib.contextmanager
def _passing_signals(child: subprocess.Popen[bytes]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; a library call passes nothing on
        return

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            child.send_signal(number)

    before = {number: signal.signal(number, forward) for number in _FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
