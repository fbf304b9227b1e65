"""Scanning in processes of its own, one per core, and finding the record that kills one.

A file that crashes a decoder takes the whole process with it.  What that process was at is scanned
again in halves, each death halving the suspects, until the record is found and refused.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as connections_ready
from typing import Protocol

from brim.data.columns import Bad, Columns, Scan, joined
from brim.data.helper import start
from brim.errors import BrimError, InputError

_MAX_DEATHS = 40
_READY = "ready"


class Work(Protocol):
    """What a scanning process is sent first; picklable."""

    def scan(self, records: Sequence[int]) -> Scan: ...


@dataclass(frozen=True, slots=True)
class _Refused:
    """A scanning process met what the user has to change: a package that is missing, say."""

    what: str
    hint: str


def serve(connection: Connection) -> None:
    """Entry of a scanning process: scans what it is sent, until the connection ends."""
    with contextlib.suppress(EOFError, KeyboardInterrupt):
        work: Work = connection.recv()
        connection.send(_READY)
        while True:
            try:
                answer: Scan | _Refused = work.scan(connection.recv())
            except BrimError as error:
                answer = _Refused(str(error.args[0]), error.hint)
            connection.send(answer)


def scan_in_processes(
    work: Work, chunks: Sequence[range], processes: int
) -> Iterator[tuple[range, Scan]]:
    """The chunks in their order, scanned by ``processes`` helpers.  Raises BrimError."""
    deaths = _Deaths()
    helpers = [_Helper(work, deaths) for _ in range(min(processes, len(chunks)))]
    waiting = iter(enumerate(chunks))
    at: dict[Connection, tuple[int, _Helper]] = {}
    done: dict[int, Scan] = {}

    def ask(helper: _Helper) -> None:
        if (following := next(waiting, None)) is not None:
            number, chunk = following
            helper.send(chunk)
            at[helper.connection] = number, helper

    try:
        for helper in helpers:
            helper.wait_until_ready()
            ask(helper)
        for number, chunk in enumerate(chunks):
            while number not in done:
                for ready in connections_ready(list(at)):
                    assert isinstance(ready, Connection)
                    answered, helper = at.pop(ready)
                    done[answered] = helper.receive(chunks[answered])
                    ask(helper)
            yield chunk, done.pop(number)
    finally:
        for helper in helpers:
            helper.close()


@dataclass(slots=True)
class _Deaths:
    """Of all helpers of a scan; too many are no matter of single records."""

    count: int = 0
    codes: list[int] = field(default_factory=list)

    def add(self, code: int) -> None:
        self.count += 1
        self.codes.append(code)
        if self.count > _MAX_DEATHS:
            raise self.error()

    def error(self) -> BrimError:
        last = f"its exit code was {self.codes[-1]}" if self.codes else "it said nothing"
        return BrimError(
            f"a process that reads headers and texts died {self.count} times ({last})",
            hint="its last words, if any, stand above; -9 is the kernel's out-of-memory killer",
        )


class _Helper:
    """One scanning process, started anew when a record kills it."""

    def __init__(self, work: Work, deaths: _Deaths) -> None:
        self._work, self._deaths = work, deaths
        self._begin()

    def _begin(self) -> None:
        self._process, self.connection = start(__name__, "serve")
        # a process that is dead already is noticed when its answer is awaited
        with contextlib.suppress(OSError):
            self.connection.send(self._work)

    def wait_until_ready(self) -> None:
        """Raises BrimError for a process that cannot even start."""
        try:
            assert self.connection.recv() == _READY
        except (EOFError, OSError):
            self._deaths.add(self._process.wait())
            raise self._deaths.error() from None

    def send(self, records: Sequence[int]) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(records)

    def receive(self, records: Sequence[int]) -> Scan:
        """The scan of ``records``, which were sent; those that kill the process are bad."""
        try:
            answer: Scan | _Refused = self.connection.recv()
        except (EOFError, OSError):
            return self._without_the_killer(records)
        if isinstance(answer, _Refused):
            raise InputError(answer.what, hint=answer.hint)
        return answer

    def _without_the_killer(self, records: Sequence[int]) -> Scan:
        code = self._process.wait()
        self._deaths.add(code)
        self.close()
        self._begin()
        self.wait_until_ready()
        if len(records) == 1:
            reason = f"reading it ended the process (exit code {code})"
            return Scan(Columns.of([]), [Bad(records[0], "sample.deadly", reason)], records=1)
        parts = []
        middle = len(records) // 2
        for part in (records[:middle], records[middle:]):
            self.send(part)
            parts.append(self.receive(part))
        return joined(parts)

    def close(self) -> None:
        self.connection.close()
        self._process.wait()
