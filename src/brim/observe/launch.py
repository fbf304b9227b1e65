"""Starts the user's command with brim's hooks in it, and stays out of its way.

The child keeps its working directory, its streams, its signals and its exit code.  All that is
added are a folder at the front of ``PYTHONPATH`` (a ``sitecustomize`` that needs nothing but the
standard library) and two variables that tell the hooks where to write.
"""

from __future__ import annotations

import contextlib
import errno
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
    most_s: float = 900.0
    """Measure no longer than this, however slow the steps are."""
    profile: bool = True
    losses: bool = False
    """Record the loss of each step."""

    def encoded(self) -> str:
        options = {
            "steps": self.steps,
            "least_s": self.least_s,
            "most_s": self.most_s,
            "profile": self.profile,
            "losses": self.losses,
        }
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
    if program is None and Path(command[0]).is_file():
        raise InputError(
            f"{command[0]}: is not a program that can be started",
            hint=f"name the one that runs it: python {command[0]} …",
        )
    if program is None:
        raise InputError(
            f"{command[0]}: no such command",
            hint="what follows -- is a program and its arguments, run without a shell",
        )
    return [program, *command[1:]]


def run(command: Sequence[str], env: dict[str, str], stop: threading.Event | None = None) -> int:
    """Run to the end; the value is the exit code, 128 + n for a job that signal n ended.

    Ctrl-C reaches the job from the terminal, as it does without brim, and brim waits for it to
    end; other signals that would end brim are passed on.  Setting ``stop`` ends the job with
    SIGTERM, as a scheduler would.  Raises :class:`InputError` when the program cannot be started.
    """
    with _passing_signals() as relay:
        child = _start(command, env)
        relay.attach(child)
        while True:
            try:
                code = child.wait(timeout=0.2 if stop is not None else None)
                break
            except KeyboardInterrupt:
                continue  # the job has received it too
            except subprocess.TimeoutExpired:
                if stop is not None and stop.is_set():
                    _terminate_tree(child.pid)
                    stop = None
    return code if code >= 0 else 128 - code


def _start(command: Sequence[str], env: dict[str, str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=env)
    except OSError as error:
        hint = ""
        if error.errno == errno.ENOEXEC:
            hint = f"give it a first line such as #!/bin/bash, or name the shell: bash {command[0]}"
        raise InputError(f"{command[0]}: cannot be run ({error.strerror})", hint=hint) from None


def _terminate_tree(pid: int) -> None:
    """SIGTERM to a process and all below it: a shell that ends leaves its children running."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()


class _Relay:
    """Passes signals on to the job, also those that come before there is one."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def attach(self, child: subprocess.Popen[bytes]) -> None:
        self._child = child
        for number in self._early:
            self(number, None)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._child is None:
            self._early.append(number)
        else:
            with contextlib.suppress(ProcessLookupError):
                self._child.send_signal(number)


@contextlib.contextmanager
def _passing_signals() -> Iterator[_Relay]:
    relay = _Relay()
    if threading.current_thread() is not threading.main_thread():
        yield relay  # only the main thread may set handlers; a library call passes nothing on
        return
    numbers = _FORWARDED if _at_terminal() else (*_FORWARDED, signal.SIGINT)
    before = {number: signal.signal(number, relay) for number in numbers}
    try:
        yield relay
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _at_terminal() -> bool:
    """Is brim in the foreground of a terminal, whose Ctrl-C reaches the job as well?"""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
