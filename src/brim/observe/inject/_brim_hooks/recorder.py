"""The counters of the running step, and the files of the run directory they are appended to.

A line is one JSON object, and one ``write`` appends one or several: a reader after SIGKILL sees
whole lines and at most one cut one.  After the first failure to write (a full disk,
say) nothing more is written, and brim leaves the process at its next step; the job never notices.

A step only hands its sums over: the sampler's thread makes lines of them, twice a second,
while the training thread computes.  A killed job loses the steps of its last moment.
"""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

now = time.perf_counter  # CLOCK_MONOTONIC on Linux: comparable between processes of one host

PENDING = 256  # steps that may wait to be written
MAX_BYTES = 64 << 20  # per file; a run directory stays bounded whatever the job does

options: dict[str, Any] = {}
off = False  # no hook does anything any more, in this process
full = False  # a record could not be written: nothing is, and the next step ends the measurement
current: Recorder | None = None  # the Recorder of this process, once it trains
setting: int | None = None  # which of two settings is in effect, in a job that alternates
ticked: list[Callable[[str], None]] = []  # called with the clock after each line; must not raise
_failures: dict[str, str] = {}


def arm() -> None:
    """Read the options; a forked child starts with a clean slate, and so does a second call."""
    global options, off, full, current
    options = json.loads(os.environ.get("BRIM_OPTIONS", "{}"))
    options["run_dir"] = os.environ["BRIM_RUN_DIR"]
    off, full, current = False, False, None
    _failures.clear()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)


def _after_fork() -> None:
    """The sampler's thread is not in the child."""
    global current
    current = None
    sampler = sys.modules.get("_brim_hooks.sampler")
    if sampler is not None:
        sampler.give_interval_back()


def failed(where: str, error: Any) -> None:
    """A hook raised: remember it, say it once in the records, carry on without that hook."""
    _failures.setdefault(where, repr(error))
    if os.environ.get("BRIM_DEBUG"):
        sys.stderr.write("brim: %s: %r\n" % (where, error))


def seen(what: str) -> None:
    """Note that hooks are in this process (``python``), or that torch is; never raises.

    A run in which nothing trained is explained by these lines.
    """
    line = '{"kind":"%s","pid":%d}\n' % (what, os.getpid())
    try:
        fd = os.open(
            os.path.join(options["run_dir"], "processes.jsonl"),
            os.O_WRONLY | os.O_APPEND | os.O_CREAT,
            0o600,
        )
        try:
            if os.fstat(fd).st_size < 1 << 20:
                os.write(fd, line.encode())
        finally:
            os.close(fd)
    except OSError as error:
        failed("seen", error)


def guarded(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook's error must never reach the user's program."""

    def call(*args: Any) -> None:
        if not off:
            try:
                return hook(*args)
            except Exception as error:
                failed(getattr(hook, "__name__", "hook"), error)
        return None

    return call


def distributed() -> "tuple[int, int] | None":
    """(rank, world) of an initialised process group; processes may be started without RANK."""
    module = sys.modules.get("torch.distributed")
    if module is None or not module.is_available() or not module.is_initialized():
        return None
    return module.get_rank(), module.get_world_size()


def rank() -> int:
    group = distributed()
    if group is not None:
        return group[0]
    for name in ("RANK", "BRIM_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"):
        value = os.environ.get(name, "")
        if value.isdigit():
            return int(value)
    return 0


def rounded(samples: dict[str, list[float]]) -> dict[str, list[float]]:
    """Microseconds are enough."""
    return {key: [c[0], *(round(value, 6) for value in c[1:])] for key, c in samples.items()}


_encoded = json.JSONEncoder(separators=(",", ":")).encode


class Appender:
    """Appends JSON lines to one file, at most MAX_BYTES, and never raises."""

    def __init__(self, name: str) -> None:
        self.path = os.path.join(options["run_dir"], name)
        self.fd: int | None = None
        self.written = 0

    def line(self, *records: dict[str, Any]) -> None:
        """One system call, however many lines."""
        global full
        if off or full:
            return
        text = "\n".join([*map(_encoded, records), ""])
        data = text.encode("utf-8", "replace")
        try:
            if self.fd is None:
                self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            if self.written + len(data) <= MAX_BYTES:
                self.written += os.write(self.fd, data)
        except OSError as error:
            failed("write", error)
            full = True

    def close(self) -> None:
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Recorder:
    """Sums of the running step; :meth:`tick` writes them as one line and starts anew.

    ``sums`` maps the field names of ``brim.record.steps.Step`` to seconds, counts or bytes.

    What runs in every step adds to it in place and compares thread numbers itself: between two
    large products Python's code is out of the caches, and each call there costs microseconds.
    """

    def __init__(self, thread: int | None = None) -> None:
        from _brim_hooks import facts, sampler

        self.last_cpu, self.delay, self.delay_at = 0.0, RunDelay(None), 0.0
        self.train_on(threading.get_ident() if thread is None else thread)
        self.started = self.last = now()
        self.wall = 0.0  # of the step before
        self.sums: defaultdict[str, Any] = defaultdict(int)
        self.lines: dict[str, list[float]] = {}  # "file:line" -> [reads, seconds] of device values
        self.pending: deque[dict[str, Any]] = deque()
        self.writing = threading.Lock()
        self.n = 0
        self.clocks: dict[str, int] = {}  # what ticks -> how often it has
        self.paced = False  # an optimizer gives the rhythm
        self.phase = ""
        self.backwards = 0
        self.batches_seen = 0
        self.counts_tokens = False
        self.waited = math.inf  # seconds for the last batch
        self.asked = (1e-9, 0.0)  # wall and CPU seconds for the last batch that was measured
        self.plan: Any = None  # of :mod:`_brim_hooks.window`
        self.loaded = False  # a torch DataLoader feeds this process
        self.evaluating: int | None = None  # backward passes when the model was set to eval()
        os.environ["BRIM_RANK"] = str(rank())  # for the loader's workers
        stem = "rank%d" % rank()
        self.file = Appender("steps.%s.%d.jsonl" % (stem, os.getpid()))
        self.file.line(facts.header())
        self.sampler = sampler.Sampler(self, Appender("stacks.%s.%d.jsonl" % (stem, os.getpid())))
        self.sampler.start()

    def add(self, name: str, value: float) -> None:
        self.sums[name] += value

    def train_on(self, thread: int) -> None:
        """The thread that trains; its clocks are read from wherever a tick comes."""
        self.thread = thread
        self.native = native_id(thread)
        self.delay.close()
        self.delay = RunDelay(self.native)
        self.last_cpu = self.cpu()
        self.last_delay = self.delay.read()

    def cpu(self) -> float:
        """CPU seconds of the training thread so far; what was known last once it has ended."""
        value = thread_cpu(self.native)
        return self.last_cpu if value is None else value

    def asks(self) -> bool:
        """Whether the next wait's CPU time is worth two clock reads: not after a batch that was
        there at once, and in every fourth step where it is a small part of it."""
        small = 0.2 * self.wall
        return self.waited >= SHORT and (self.waited >= small or self.n % 4 == 0)

    def wants_batches(self) -> bool:
        """No loader has shown a batch, and training is on its way."""
        return self.n >= 3 and "loader" not in self.clocks and not self.loaded

    def mine(self) -> bool:
        """Is this the training thread?  Other threads' time is not the device's."""
        return threading.get_ident() == self.thread

    def tick(self, clock: str) -> None:
        """The end of a step by ``clock`` (``opt<k>``, ``loader`` or ``exit``)."""
        t = now()
        cpu, delay = self.cpu(), None
        if t - self.delay_at >= DELAY_EVERY:  # a read is a tenth of what a short step costs
            delay, self.delay_at = self.delay.read(), t
        record, self.sums = self.sums, defaultdict(int)  # the sums become the line
        self.wall = t - self.last
        record["n"], record["t"], record["wall"] = self.n, t, self.wall
        record["clock"], record["cpu"] = clock, cpu - self.last_cpu
        if delay is not None:
            if self.last_delay is not None:
                record["run_delay"] = delay - self.last_delay
            self.last_delay = delay
        if setting is not None:
            record["arm"] = setting
        if self.lines:
            record["reads"], self.lines = self.lines, {}
        samples = self.sampler.take()
        if samples:
            record["samples"] = samples
        self.pending.append(record)
        if len(self.pending) >= PENDING:
            self.write()
        self.clocks[clock] = self.clocks.get(clock, 0) + 1
        self.n += 1
        self.last, self.last_cpu = t, cpu
        for call in ticked:
            call(clock)

    def write(self) -> None:
        """Append the steps that are pending, from whichever thread."""
        with self.writing:
            records = [self.pending.popleft() for _ in range(len(self.pending))]
            for record in records:
                if "samples" in record:
                    record["samples"] = rounded(record["samples"])
            if records:
                self.file.line(*records)

    def restart(self) -> None:
        """Leave out the time since the last tick: it was brim's own."""
        self.last = now()
        self.last_cpu, self.last_delay = self.cpu(), self.delay.read()
        self.sums, self.lines = defaultdict(int), {}
        self.sampler.take()

    def finish(self, why: str) -> None:
        """The measurement is over: write what is open, stop all cost."""
        global off, current
        from _brim_hooks import facts, losses

        try:
            self.sampler.stop()
            self.tick("exit")
            self.write()
            losses.write(Appender("losses.rank%d.%d.jsonl" % (rank(), os.getpid())))
            self.file.line(facts.footer(why, _failures))
            self.file.close()
            _leave_mark(MEASURED)
        finally:
            self.delay.close()
            off = True
            current = None


SHORT = 0.0005  # seconds: asking for the CPU time of a shorter wait takes a good part of it
DELAY_EVERY = 0.1  # seconds between readings of the time without a core
PATIENCE = 20.0  # seconds after torch is there, without any sign of training


def watch_anyway() -> None:
    """After a while without a step, a loader or a backward, the whole process is measured."""
    timer = threading.Timer(PATIENCE, _watch_anyway)
    timer.daemon = True
    timer.start()


def _watch_anyway() -> None:
    from _brim_hooks import worker

    # only now: with python -m, the program's name is not known while its modules are imported
    if current is None and worker.current is None and not off and not _is_launcher():
        try:
            recorder(threading.main_thread().ident)
        except Exception as error:
            failed("whole process", error)


def _is_launcher() -> bool:
    """torchrun and its like start the processes that train, and wait."""
    program = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    modules = ("torch/distributed/run.py", "accelerate/commands/launch.py")
    return program in ("torchrun", "accelerate", "deepspeed", "swift", "llamafactory-cli") or any(
        os.path.abspath(sys.argv[0]).endswith(m) for m in modules if getattr(sys, "argv", None)
    )


MEASURED = ".measured"  # loader workers outlive the measurement: this file tells them its end
ENDING = ".ending"  # whoever waits for the job need not be told that it runs on


def _mark(what: str, pid: int) -> str:
    return os.path.join(options["run_dir"], "%s.%d" % (what, pid))


def _leave_mark(what: str) -> None:
    try:
        os.close(os.open(_mark(what, os.getpid()), os.O_WRONLY | os.O_CREAT, 0o600))
    except OSError as error:
        failed("mark", error)


def parent_is_measured() -> bool:
    """In a loader worker: has the training process finished measuring?"""
    return os.path.exists(_mark(MEASURED, os.getppid()))


def recorder(thread: int | None = None) -> Recorder | None:
    """This process's recorder; made at the first sign of training.  Never raises."""
    global current, off
    if current is None and not off:
        import atexit

        try:
            current = Recorder(thread)
            atexit.register(_at_exit, os.getpid())
        except Exception as error:  # no more threads, say: this process goes unmeasured
            failed("recorder", error)
            off = True
    return current


def _at_exit(pid: int) -> None:
    if os.getpid() != pid:
        return
    try:
        _leave_mark(ENDING)
        if current is not None:
            current.finish("the process ended")
    except Exception as error:
        failed("exit", error)


def thread_cpu(native: int | None) -> float | None:
    """CPU seconds of a thread of this process so far; None when it has ended.

    The clock's number is made as Linux makes it: asking ``pthread_getcpuclockid`` for a thread
    that has just ended reads memory that may be gone.
    """
    if native is None or not hasattr(time, "clock_gettime"):
        return time.thread_time()
    try:
        return time.clock_gettime((~native << 3) | 6)
    except OSError:
        return None


def native_id(ident: int) -> int | None:
    """The kernel's number of a Python thread; None for one that Python did not start."""
    for thread in threading.enumerate():
        if thread.ident == ident:
            return thread.native_id
    return None


class RunDelay:
    """Seconds that a thread was runnable without a core; the file stays open, a read is cheap."""

    def __init__(self, native: int | None) -> None:
        self.fd = -1
        try:
            self.fd = os.open("/proc/self/task/%s/schedstat" % native, os.O_RDONLY)
        except OSError:
            pass

    def read(self) -> float | None:
        """None where Linux does not say, or the thread has ended."""
        try:
            return int(os.pread(self.fd, 64, 0).split()[1]) * 1e-9
        except (OSError, IndexError, ValueError):
            return None

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
