"""``brim diagnose``: from a command, a trace or an earlier run to its account."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from brim.cli import outputs, values
from brim.cli.load import judge_anew
from brim.errors import GOOD, OVER_THRESHOLD, BrimError, UsageError

if TYPE_CHECKING:
    from brim.record.findings import Diagnosis

_STEPS = 100
_RUNS = Path("runs")


class Command:
    """Say what the device loses and why, in a command, a trace or an earlier run."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.usage = "brim diagnose [options] (-- COMMAND … | RUN_DIR | TRACE …)"
        parser.add_argument("what", nargs="*", metavar="RUN_DIR|TRACE")
        parser.add_argument(
            "--steps", type=values.whole("steps", 1), metavar="N", help="steps to measure (100)"
        )
        parser.add_argument("--warmup", type=values.whole("steps"), metavar="N",
                            help="steps to leave out first (found by itself)")  # fmt: skip
        parser.add_argument(
            "--stop", action="store_true", help="end the job (SIGTERM) once it is measured"
        )
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write findings.json here too"
        )
        parser.add_argument(
            "--html", type=Path, metavar="FILE", help="write a report for a browser"
        )
        parser.add_argument(
            "--fail-above",
            type=values.share,
            metavar="SHARE",
            help="exit code 3 when a finding takes more than this share of the time (0.2, 20%%)",
        )
        parser.add_argument("--runs", type=Path, metavar="DIR",
                            help="where run directories go (runs)")  # fmt: skip
        parser.add_argument(
            "--all-frameworks", action="store_true", help="word every remedy in all"
        )
        parser.set_defaults(command=[])

    def run(self, args: argparse.Namespace) -> int:
        if args.command and args.what:
            raise UsageError(
                f"both a command and {args.what[0]} were given",
                hint="diagnose one of them: brim diagnose -- COMMAND, or brim diagnose RUN_DIR",
            )
        outputs.check(args.json, args.html)
        code = GOOD
        if args.command:
            code, diagnosis = _measure(args)
        elif args.what:
            _refuse_idle(args)
            diagnosis = judge_anew([Path(p) for p in args.what], warmup=args.warmup)
            _show(diagnosis, args, sys.stdout)
        else:
            raise UsageError(
                "nothing to diagnose",
                hint="brim diagnose -- python train.py …, or a run directory, or a trace",
            )
        if code == GOOD and args.fail_above is not None and _above(diagnosis, args.fail_above):
            return OVER_THRESHOLD
        return code


def _refuse_idle(args: argparse.Namespace) -> None:
    """An option that would do nothing is a misunderstanding; the user is told of it."""
    given = {"--steps": args.steps, "--stop": args.stop or None, "--runs": args.runs}
    for option, value in given.items():
        if value is not None:
            raise UsageError(
                f"{option} is about a command's run, and {args.what[0]} is measured already",
                hint="leave it out, or give the command: brim diagnose -- python train.py …",
            )


def _above(diagnosis: Diagnosis, limit: float) -> bool:
    return any(f.share > limit for f in diagnosis.findings)


def _measure(args: argparse.Namespace) -> tuple[int, Diagnosis]:
    """Run the command with the hooks in it; its exit code and what was seen.

    A job that runs on after its steps were measured has its verdict printed at once.
    """
    from brim.cli.measured import Early, new_run
    from brim.observe import launch
    from brim.observe.devices import Sampler
    from brim.record import run as runs

    command = launch.resolve(args.command)
    folder = new_run(args.runs or _RUNS, args.command)
    print(f"brim: watching, records in {folder}", file=sys.stderr)
    options = launch.Options(steps=args.steps or _STEPS, warmup=args.warmup)
    begin = time.monotonic()
    then = "ending the job" if args.stop else "the job runs on as if brim were not there"
    early = Early(
        folder, lambda found: _show(found, args, sys.stderr), warmup=args.warmup, then=then
    )
    stop = early.told if args.stop else None
    with Sampler(folder, period_s=0.5), early:
        code = launch.run(command, launch.environment(folder, options), stop)
    runs.finish(folder, exit_code=code, wall_s=time.monotonic() - begin)
    if early.found is None:
        early.found = _judged(folder, args, code)
    return (GOOD if args.stop and early.told.is_set() else code), early.found


def _judged(folder: Path, args: argparse.Namespace, code: int) -> Diagnosis:
    """The verdict after the job's end; what goes wrong with it never hides the job's own code."""
    from brim.cli.measured import judge

    try:
        found = judge(folder, warmup=args.warmup)
        _show(found, args, sys.stderr)
    except BrimError as error:
        if code != GOOD:
            error.exit_code = code
        raise
    return found


def _show(diagnosis: Diagnosis, args: argparse.Namespace, stream: TextIO) -> None:
    from rich.console import Console

    from brim.record import findings
    from brim.report.terminal import render

    console = Console(file=stream)
    render(diagnosis, console, all_frameworks=args.all_frameworks)
    if args.json is not None:
        with outputs.writing(args.json):
            findings.write(args.json, diagnosis)
    if args.html is not None:
        from brim.report.html import write_html

        with outputs.writing(args.html):
            write_html(diagnosis, args.html)
