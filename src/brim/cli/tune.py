"""``brim tune``: apply remedies to a job, measure each, keep what helps, say the change to make."""

from __future__ import annotations

import argparse
import contextlib
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli import outputs
from brim.errors import GOOD, UsageError

if TYPE_CHECKING:
    from brim.record.ladder import Ladder
    from brim.tune.jobs import Tunable
    from brim.tune.loop import Tuner
    from brim.tune.state import Folder

_INTERRUPTED = 128 + signal.SIGINT
_EPILOG = """\
The command is run again and again, each time for a few steps, and is then ended with SIGTERM.
Ctrl-C ends the search and keeps what was found; the same command goes on from there.
"""


class Command:
    """Apply remedies to a job one at a time, measure each, keep what helps."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "brim tune [options] (-- COMMAND … | CONFIG.toml)"
        parser.epilog = _EPILOG
        option = parser.add_argument
        option("config", nargs="?", type=Path, metavar="CONFIG.toml",
               help="a configuration of brim train instead of a command")  # fmt: skip
        option("--budget", type=_seconds, default=1200.0, metavar="TIME",
               help="longest time of all runs together: 20m, 1h, 90s (20m)")  # fmt: skip
        option("--allow", choices=("lossy",), action="append", default=[],
               help="also try what changes the numbers: TF32, autocast")  # fmt: skip
        option("--steps", type=_steps, default=40, metavar="N",
               help="steps of each run to measure (40)")  # fmt: skip
        option("--dir", type=Path, metavar="DIR",
               help="where runs and state go (runs/tune-…, one for each command)")  # fmt: skip
        option("--fresh", action="store_true",
               help="forget what was measured before")  # fmt: skip
        option("--json", type=Path, metavar="FILE", help="write the ladder here")
        option("--html", type=Path, metavar="FILE",
               help="write a page with the picture of it")  # fmt: skip
        parser.set_defaults(command=[])

    def run(self, args: argparse.Namespace) -> int:
        words = _words(args)
        outputs.check(args.json, args.html)
        from brim.record.run import scrub
        from brim.tune import state

        if args.config:
            _check_config(args.config)
        path = args.dir or state.default_path(words, args.steps)
        folder = state.open_folder(path, words, args.steps, fresh=args.fresh)
        job = _job(args, folder)
        tuner = _tuner(job, folder, args)
        with _sigterm_is_ctrl_c():
            ended = tuner.tune()
        _show(job.finish(tuner.ladder(scrub(words), ended)), args)
        return _INTERRUPTED if ended == "interrupted" else GOOD


def _words(args: argparse.Namespace) -> list[str]:
    if args.command and args.config:
        raise UsageError(
            f"both a command and {args.config} were given",
            hint="tune one of them: brim tune -- COMMAND, or brim tune CONFIG.toml",
        )
    if not args.command and not args.config:
        raise UsageError(
            "nothing to tune", hint="brim tune -- python train.py …, or brim tune config.toml"
        )
    return list(args.command) or ["brim", "train", str(args.config)]


def _check_config(path: Path) -> None:
    """A mistake in it is said before there is a folder for the runs."""
    from brim.train.config import load

    load(path)


def _job(args: argparse.Namespace, folder: Folder) -> Tunable:
    from brim.cli.measured import host_facts, judge
    from brim.tune.runner import Window

    window = Window(steps=args.steps)
    if args.command:
        from brim.tune.jobs import of_command

        return of_command(args.command, folder.runs, judge=judge, host=host_facts(), window=window)
    from brim.tune.trainer import of_config

    return of_config(args.config, folder.runs, judge=judge, host=host_facts(), window=window)


def _tuner(job: Tunable, folder: Folder, args: argparse.Namespace) -> Tuner:
    from brim.tune.loop import Tuner
    from brim.tune.trials import Trials

    say = _Say()
    trials = Trials(job.run, budget_s=args.budget, path=folder.log, say=say)
    if trials.logged:
        say(f"going on with {trials.logged} runs in {folder.path}")
    else:
        say(f"runs and state are in {folder.path}")
    return Tuner(trials, job.propose, lossy="lossy" in args.allow, say=say)


class _Say:
    """Lines on standard error, with the time since the start."""

    def __init__(self) -> None:
        self._begin = time.monotonic()

    def __call__(self, text: str) -> None:
        seconds = int(time.monotonic() - self._begin)
        clock = f"{seconds // 60:>3}:{seconds % 60:02}"
        print(f"{clock}  {text}", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _sigterm_is_ctrl_c() -> Iterator[None]:
    """A scheduler's signal must not leave a job behind, nor lose what was found."""

    def interrupt(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _show(ladder: Ladder, args: argparse.Namespace) -> None:
    from rich.console import Console

    from brim.record.ladder import encode
    from brim.report.ladder import render, write_html

    if args.json is not None:
        outputs.write(args.json, encode(ladder))
    if args.html is not None:
        with outputs.writing(args.html):
            write_html(ladder, args.html)
    render(ladder, Console())


def _seconds(text: str) -> float:
    """``20m``, ``1h30m``, ``90s``, ``90``."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?", text)
    if not found or not any(found.groups()):
        raise argparse.ArgumentTypeError(f"{text} is no time: give 20m, 1h or 90s")
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    total = 3600 * hours + 60 * minutes + seconds
    if not total:
        raise argparse.ArgumentTypeError("there is no time for a single run")
    return float(total)


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 10:
        raise argparse.ArgumentTypeError(f"{text}: at least 10 steps are needed to compare")
    return int(text)
