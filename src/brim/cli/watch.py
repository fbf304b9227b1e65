"""``brim watch``: devices, processes and the running job, live, once, recorded or exported."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli import outputs, values
from brim.errors import GOOD, BrimError, InputError, MissingExtra, UsageError

if TYPE_CHECKING:
    from brim.observe.backend import Backend
    from brim.observe.child import Child
    from brim.observe.feed import Feed
    from brim.report.live_state import LiveState


class Command:
    """Show devices as they are: what the tensor cores do, not only whether a kernel ran."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "brim watch [options] [RUN_DIR | -- COMMAND …]"
        parser.add_argument(
            "run", nargs="?", type=Path, metavar="RUN_DIR",
            help="follow this run (default: the newest running one in --runs)",
        )  # fmt: skip
        parser.add_argument("--once", action="store_true", help="print one table and end")
        parser.add_argument(
            "--json", metavar="FILE", help="write one snapshot as JSON (- for the terminal) and end"
        )
        parser.add_argument(
            "--record", type=Path, metavar="FILE", help="append every sample to this file"
        )
        parser.add_argument(
            "--prometheus", metavar="ADDRESS:PORT",
            help="serve metrics there, as 127.0.0.1:9464",
        )  # fmt: skip
        parser.add_argument(
            "--headless", action="store_true", help="no view: record or export until stopped"
        )
        parser.add_argument(
            "--interval",
            type=values.between(0.1, 3600, "seconds"),
            default=0.5,
            metavar="S",
            help="between samples (0.5)",
        )
        parser.add_argument(
            "--dcgm", action="store_true",
            help="read profiling fields from a DCGM host engine (tensor activity before Hopper)",
        )  # fmt: skip
        parser.add_argument(
            "--runs", type=Path, default=Path("runs"), metavar="DIR", help="run directories (runs)"
        )
        parser.set_defaults(command=[])

    def run(self, args: argparse.Namespace) -> int:
        _check(args)
        with contextlib.ExitStack() as stack:
            watch = _Watch(args, stack)
            return watch.run()


def _check(args: argparse.Namespace) -> None:
    if args.command and args.run is not None:
        raise UsageError(f"both a command and {args.run} were given", hint="watch one of them")
    if args.command and (args.once or args.json is not None):
        raise UsageError(
            "--once and --json look once; a command runs on", hint="watch it without them"
        )
    if args.json not in (None, "-"):
        outputs.check(Path(args.json))
    if args.run is not None and not (args.run / "run.json").is_file():
        raise InputError(f"{args.run}: no run directory (it has no run.json)")
    if args.headless and args.record is None and args.prometheus is None and not args.command:
        raise UsageError("--headless does nothing alone", hint="add --record or --prometheus")


class _Watch:
    """One call of the verb."""

    def __init__(self, args: argparse.Namespace, stack: contextlib.ExitStack) -> None:
        self._args = args
        self._stack = stack
        self._once = args.once or args.json is not None
        view = not self._once and not args.headless
        # without a terminal there is nothing to draw on: say what is, once
        self._view = view and sys.stdout.isatty() and sys.stdin.isatty()
        self._once = self._once or (view and not self._view and not _goes_on(args))
        self._child: Child | None = None
        self._folder: Path | None = args.run
        if args.command:
            self._start(args)
        elif self._folder is None:
            self._folder = _running(args.runs)
        self._feed, self._state = self._open()

    def run(self) -> int:
        if self._args.prometheus is not None:
            self._export()
        if self._once:
            self._feed.first()
            self._follow()
            _print(self._state, self._args.json)
        elif self._view:
            self._draw()
        else:
            self._loop()
        return self._end()

    def _start(self, args: argparse.Namespace) -> None:
        from brim.cli.measured import new_run
        from brim.observe import launch
        from brim.observe.child import Child

        command = launch.resolve(args.command)
        self._folder = new_run(args.runs, args.command)
        self._began = time.monotonic()
        output = self._folder / "output.log" if self._view else None
        self._child = Child(command, self._folder, output=output)

    def _open(self) -> tuple[Feed, LiveState]:
        from brim.observe.devices import Probe
        from brim.observe.feed import Feed
        from brim.record.devices import About, DeviceSample, HostSample
        from brim.report.live_state import LiveState

        args = self._args
        job = self._child.pid if self._child is not None else _pid_of(self._folder)
        probe = Probe(job=job, with_root=True, backend=_backend(args))
        state = LiveState(probe.about(args.interval))

        def consume(about: About, devices: list[DeviceSample], host: HostSample | None) -> None:
            state.about = about
            state.add(devices, host)

        feed = Feed(probe, args.interval, consume, record=self._record_to())
        self._stack.callback(feed.close)
        if feed.record_error:
            raise InputError(feed.record_error)
        self._follower = None
        if self._folder is not None:
            from brim.report.live_job import JobFollower

            self._follower = JobFollower(self._folder)
        return feed, state

    def _record_to(self) -> Path | None:
        """A command's run directory gets its devices without being asked."""
        from brim.record.devices import FILE

        if self._args.record is None and self._child is not None and self._folder is not None:
            return self._folder / FILE
        path: Path | None = self._args.record
        return path

    def _follow(self) -> None:
        if self._follower is not None:
            self._state.job = self._follower.view()

    def _tick(self) -> bool:
        self._feed.tick()
        self._follow()
        return self._child is None or not self._child.ended()

    def _draw(self) -> None:
        try:
            from brim.report.live import LiveApp
        except ImportError:
            raise MissingExtra("the live view", package="textual", extra="watch") from None
        unicode = (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
        app = LiveApp(self._state, self._tick, self._args.interval, unicode=unicode)
        app.run()
        if app.failure is not None:
            raise BrimError(f"the view ended: {type(app.failure).__name__}: {app.failure}")

    def _loop(self) -> None:
        """Sample until a signal or the job's end."""
        stopped = threading.Event()

        def stop(number: int, frame: object) -> None:
            stopped.set()

        before = {n: signal.signal(n, stop) for n in (signal.SIGINT, signal.SIGTERM)}
        try:
            while not stopped.wait(self._args.interval) and self._tick():
                pass
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _export(self) -> None:
        from brim.report.prometheus import serve

        server = serve(self._state, self._args.prometheus)
        self._stack.callback(server.close)
        print(server.words(), file=sys.stderr)

    def _end(self) -> int:
        """Wait for the command, if there is one: its exit code is brim's."""
        if self._child is None:
            return GOOD
        from brim.record.run import finish

        assert self._folder is not None
        if not self._child.ended():
            print("brim: the job goes on; Ctrl-C ends it", file=sys.stderr)
        code = self._child.wait()
        finish(self._folder, exit_code=code, wall_s=time.monotonic() - self._began)
        print(f"brim: the job ended with {code}; records in {self._folder}", file=sys.stderr)
        return code


def _goes_on(args: argparse.Namespace) -> bool:
    return bool(args.prometheus or args.record or args.command)


def _running(runs: Path) -> Path | None:
    from brim.report.live_job import find_running

    return find_running(runs)


def _backend(args: argparse.Namespace) -> Backend | None:
    if not args.dcgm:
        return None
    from brim.observe.dcgm import with_dcgm

    return with_dcgm()


def _pid_of(folder: Path | None) -> int | None:
    """The first training process of a run: its children are its workers."""
    if folder is None:
        return None
    from brim.record.steps import read_process

    for path in sorted(folder.glob("steps.*.jsonl")):
        process = read_process(path)
        if process is not None:
            header = process.header
            # several ranks are children of one launcher
            pid = header.ppid if header.world > 1 else header.pid
            return pid if pid > 1 and Path(f"/proc/{pid}").exists() else None
    return None


def _print(state: LiveState, json_to: str | None) -> None:
    import shutil

    from brim.report.live_rows import Canvas, plain, rows

    if json_to is None:
        width = shutil.get_terminal_size((80, 24)).columns
        height = 14 + len(state.devices) + len(state.alerts())
        encoding = (sys.stdout.encoding or "").lower().replace("-", "")
        canvas = Canvas(width, height, unicode=encoding.startswith("utf"))
        text = "\n".join(plain(r) for r in rows(state, canvas, clock=time.strftime("%H:%M:%S")))
        print(text if canvas.unicode else text.encode("ascii", "replace").decode())
        return
    data = state.as_json()
    if json_to == "-":
        print(data.decode(), end="")
        return
    outputs.write(Path(json_to), data)
