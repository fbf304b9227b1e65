"""The trainer's end of the line to the process that writes checkpoints."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from brim.errors import BrimError

_SOURCES = Path(__file__).parents[3]
PROGRAM = "import sys; sys.path.insert(0, sys.argv[3]); from brim.train.saving.writer import main; "
COMMAND = (sys.executable, "-S", "-E", "-c", PROGRAM + "main(int(sys.argv[1]), int(sys.argv[2]))")


class WriterFailed(BrimError):
    """The process could not do what it was asked, or is gone."""


class Writer:
    """One process and its open requests; never waits unless asked to.

    ``fd``: the memory file that it shares.  ``command``: what starts the process, for tests that
    kill it at a chosen call.
    """

    def __init__(self, fd: int, command: Sequence[str] = COMMAND) -> None:
        self._sent = 0
        self._unread = b""
        self._replies: dict[int, dict[str, Any]] = {}
        self._process = subprocess.Popen(
            [*command, str(os.getpid()), str(fd), str(_SOURCES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(fd,),
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._out, False)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, request: Mapping[str, Any]) -> int:
        """Send a request; returns its number.  Raises :class:`WriterFailed`."""
        self._sent += 1
        line = json.dumps({**request, "id": self._sent}).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._in, line) :]
        except OSError as error:
            raise WriterFailed(f"the process that writes checkpoints is gone: {error}") from None
        return self._sent

    def answer(self, number: int, *, wait: bool = False) -> dict[str, Any] | None:
        """The reply to request ``number``; None while there is none and ``wait`` is false.

        Raises :class:`WriterFailed` with the process's words when it failed.
        """
        while number not in self._replies:
            if not self._read(wait) and not wait:
                return None
        reply = self._replies.pop(number)
        if "error" in reply:
            raise WriterFailed(reply["error"])
        return reply

    def close(self, *, at_once: bool = False) -> None:
        """End it, after what it is doing unless ``at_once``."""
        if at_once:
            self._process.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read(self, wait: bool) -> bool:
        if wait:
            select.select([self._out], [], [])
        try:
            data = os.read(self._out, 1 << 16)
        except BlockingIOError:
            return False
        if not data:
            raise WriterFailed(
                f"the process that writes checkpoints ended with code {self._process.wait()}"
            )
        *lines, self._unread = (self._unread + data).split(b"\n")
        for line in lines:
            reply = json.loads(line)
            self._replies[reply["id"]] = reply
        return bool(lines)
