"""Looks at the training thread up to 20 times a second from a thread of its own.

How often follows from what it costs on this machine: see :class:`_Pace`.

A sample is worth the time since the one before, so that shares stay right when a long C call
kept the interpreter lock.  Stacks are stored once each; the step records count them by number.
Which cause a stack stands for is decided later, in ``brim.diagnose``.
"""

from __future__ import annotations

import linecache
import os
import random
import re
import sys
import threading
import time
from collections.abc import Iterable
from types import CodeType, FrameType
from typing import Any

from _brim_hooks import batches
from _brim_hooks import recorder as _recorder

PERIOD = 0.05  # seconds between two samples where they are cheap
LONGEST = 0.15  # where they are dear: 130 samples in the 20 seconds that are measured at least
SHARE = 0.003  # of a core for samples, while PERIOD and LONGEST allow it
_random = random.Random()  # the program's own sequence is none of ours
WRITE = 0.5  # seconds between two times that steps are written
MAX_DEPTH = 64
MAX_STACKS = 4000
MAX_CODES = 20000  # functions; a program that makes new ones all the time has no more than these
LOOKS = 40  # calls of the model that are looked at, where no loader shows the batches
HASTE = 0.0005  # seconds after which it asks for the interpreter lock, where nobody else does
IDLE = 0.02  # of the time that another thread of the program may compute and not count as busy
SWITCH = 0.003  # waiting longer than this for the interpreter lock means somebody holds it

_interval = sys.getswitchinterval()  # the program's own

_SKIP = os.path.dirname(os.path.abspath(__file__))


def give_interval_back() -> None:
    """Where nothing samples any more, threads take turns as the program has them."""
    if sys.getswitchinterval() == HASTE:
        sys.setswitchinterval(_interval)


class _Pace:
    """The pause between samples: as long as their cost asks for.

    A sample's cost is mostly the switch of threads and cold caches, so it depends on the machine
    and the job (100 µs on one, 300 µs on another), and is measured: the CPU time of the sampling
    thread itself, from sample to sample, over the last ten or so.
    """

    def __init__(self) -> None:
        self.period, self._cost_s, self._cpu = PERIOD, 0.0, time.thread_time()

    def paid(self) -> None:
        """After each sample, on the thread that samples."""
        cpu = time.thread_time()
        self._cost_s += 0.1 * (cpu - self._cpu - self._cost_s)
        self._cpu = cpu
        self.period = min(max(PERIOD, self._cost_s / SHARE), LONGEST)


class Sampler:
    def __init__(self, owner: Any, appender: Any) -> None:
        self.owner = owner
        self.appender = appender
        self.ids: dict[tuple[Any, ...], str] = {}
        self.codes: dict[int, tuple[CodeType, bool]] = {}
        self.counts: dict[str, list[float]] = {}
        self.lock = threading.Lock()
        self.running = threading.Lock()  # held while it samples: waiting for it is a pause
        self.thread: threading.Thread | None = None
        self.natives: dict[int, int] = {}
        self.cpu: dict[int, float] = {}
        self.looked = 0
        self.looked_at = -1
        self.alone = False  # no other thread of the program computes

    def start(self) -> None:
        """Sample from now on; also after :meth:`stop`."""
        self.running.acquire(blocking=False)
        self.thread = threading.Thread(target=self._run, name="brim-sampler", daemon=True)
        self.thread.start()

    def stop(self) -> None:
        """End the thread; at exit no thread of brim's may be left for Python to tear down."""
        if self.running.locked():
            self.running.release()
        if self.thread is not None and threading.current_thread() is not self.thread:
            self.thread.join(1.0)
        give_interval_back()

    def take(self) -> dict[str, list[float]]:
        """Samples since the last call: {stack: [n, wall, cpu, lock wait]} in seconds."""
        if not self.counts:
            return {}
        with self.lock:
            counts, self.counts = self.counts, {}
        return counts

    def _run(self) -> None:
        try:
            self._look()
        finally:
            give_interval_back()

    def _look(self) -> None:
        due = last = time.perf_counter()
        pace = _Pace()
        while not _recorder.off:
            # never in step with the job's rhythm
            pause = pace.period * (0.6 + 0.8 * _random.random())
            before = time.perf_counter()
            if self.running.acquire(timeout=pause):
                return
            t = time.perf_counter()
            try:
                self._sample(t - last, t - before - pause)
                if t >= due:  # several lines at once: what is warm in the caches is cheap
                    self.owner.write()
                    due = t + WRITE
                pace.paid()
            except Exception as error:
                _recorder.failed("sampler", error)
                return
            last = t
            self._ask_in_time()

    def _ask_in_time(self) -> None:
        """Python asks the running thread for the lock after 5 ms.  What holds the lock for less
        would never be seen where it is, only the next call that gives the lock away, mostly one
        into torch.  While no other thread competes for the lock, asking sooner changes nothing.
        """
        wanted = HASTE if self.alone else _interval
        if sys.getswitchinterval() in (HASTE, _interval) and sys.getswitchinterval() != wanted:
            sys.setswitchinterval(wanted)  # else the program has chosen one since

    def _thread_cpu(self, ident: int) -> float:
        """CPU seconds of a Python thread since it was last asked for."""
        native = self.natives.get(ident)
        if native is None:
            native = self.natives[ident] = _recorder.native_id(ident) or 0
        value = _recorder.thread_cpu(native) if native else None
        if value is None:  # ended, and its number may come back as another thread's
            self.natives.pop(ident, None)
            self.cpu.pop(ident, None)
            return 0.0
        delta = value - self.cpu.get(ident, value)
        self.cpu[ident] = value
        return delta

    def _sample(self, wall: float, late: float) -> None:
        owner = self.owner
        frames = sys._current_frames()
        frame = frames.get(owner.thread)
        # This very frame would hold the dict that holds it, and with it the frames, and so the
        # tensors, of the job's threads until the next garbage collection.
        frames.pop(threading.get_ident(), None)
        if frame is None:
            return
        cpu = min(self._thread_cpu(owner.thread), wall)
        key = self._key(owner.phase, frame)
        if self.looked < LOOKS and getattr(owner, "wants_batches", lambda: False)():
            self._look_at_call(owner, frame)
        waited = 0.0
        if late > SWITCH and cpu < 0.5 * wall:
            waited = self._held_by_another(frames, wall, cpu)
        else:
            # of all of them, so that a delta is one sample's
            used = [self._thread_cpu(ident) for ident in self._others(frames)]
            self.alone = all(seconds <= IDLE * wall for seconds in used)
        with self.lock:
            c = self.counts.setdefault(key, [0, 0.0, 0.0, 0.0])
            c[0] += 1
            c[1] += wall
            c[2] += cpu
            c[3] += waited

    def _look_at_call(self, owner: Any, frame: FrameType | None) -> None:
        """Without a loader, the batch is what the outermost module is called with."""
        outermost = None
        while frame is not None:
            if frame.f_code.co_name == "_call_impl":
                outermost = frame
            frame = frame.f_back
        if outermost is None or owner.n == self.looked_at:
            return
        self.looked, self.looked_at = self.looked + 1, owner.n
        values = outermost.f_locals
        batches.received(owner, [values.get("args"), values.get("kwargs")])

    def _others(self, frames: dict[int, FrameType]) -> list[int]:
        return [ident for ident in frames if ident != self.owner.thread]

    def _held_by_another(self, frames: dict[int, FrameType], wall: float, cpu: float) -> float:
        """Seconds of this sample in which another Python thread ran and the training thread
        could not; its stack is stored like any other, under the phase ``thief``."""
        busiest, most = None, 0.0
        for ident in self._others(frames):
            used = self._thread_cpu(ident)
            if used > most:
                busiest, most = ident, used
        self.alone = most <= IDLE * wall
        if busiest is None or most < 0.3 * wall:
            return 0.0
        key = self._key("thief", frames[busiest])
        with self.lock:
            c = self.counts.setdefault(key, [0, 0.0, 0.0, 0.0])
            c[0] += 1
            c[1] += min(most, wall)
        return max(0.0, wall - cpu)

    def _key(self, phase: str, frame: FrameType | None) -> str:
        """The number of a stack; a new one is written out, leaf first.

        Code objects are told apart by their address: hashing one takes all of its bytecode.
        """
        identity: list[Any] = [phase]
        top = frame
        while frame is not None and len(identity) < 2 * MAX_DEPTH:
            code = frame.f_code
            lined = self._is_user(code) or frame is top
            identity.append(id(code))
            identity.append(frame.f_lineno if lined else 0)
            frame = frame.f_back
        found = tuple(identity)
        key = self.ids.get(found)
        if key is None:
            if len(self.ids) >= MAX_STACKS or len(self.codes) >= MAX_CODES:
                return "0"
            key = self.ids[found] = str(len(self.ids) + 1)
            at = range(1, len(found), 2)
            stack = [(self.codes[found[i]][0], found[i + 1] or 0) for i in at]
            self.appender.line({"id": key, "phase": phase, "frames": self._frames(stack)})
        return key

    def _is_user(self, code: CodeType) -> bool:
        """Lines matter in the user's own files; in libraries the function is enough."""
        entry = self.codes.get(id(code))
        if entry is None:
            entry = (code, _is_own(code.co_filename))
            if len(self.codes) < MAX_CODES:
                self.codes[id(code)] = entry  # as long as it is here, its address is its own
        return entry[1]

    @staticmethod
    def _frames(stack: Iterable[tuple[CodeType, int]]) -> list[list[Any]]:
        """[[file, function, line, text], …], leaf first; text only where a line is known."""
        frames = []
        for code, line in stack:
            name = code.co_filename
            if name.startswith(_SKIP):
                continue
            function = getattr(code, "co_qualname", code.co_name)
            text = _clean(linecache.getline(name, line).strip()) if line else ""
            frames.append([name, function, line, text])
        return frames


_SECRET = re.compile(r"key|token|secret|passw|credential|auth|login", re.IGNORECASE)
_LITERAL = re.compile(r'"[^"]*("|$)' + r"|'[^']*('|$)")


def _clean(text: str) -> str:
    """A source line as it may be stored: no literal of a line that may hold a secret."""
    return (_LITERAL.sub("'***'", text) if _SECRET.search(text) else text)[:160]


def _is_own(name: str) -> bool:
    """Is a file the program's own, and no library's?"""
    return not (
        "site-packages" in name
        or "dist-packages" in name
        or name.startswith((sys.base_prefix, "<", _SKIP))
    )
