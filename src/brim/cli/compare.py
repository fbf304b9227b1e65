"""``brim compare``: two runs side by side, by cause; an exit code for CI."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli import outputs, values
from brim.errors import GOOD, OVER_THRESHOLD

if TYPE_CHECKING:
    from brim.diagnose.compare import Comparison


class Command:
    """Compare two runs, findings.json files or traces: B against A."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        what = "a run directory, a findings.json, a trace, or a folder with a trace per rank"
        parser.add_argument("a", type=Path, metavar="A", help=f"before: {what}")
        parser.add_argument("b", type=Path, metavar="B", help="after: the same")
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the comparison here")
        parser.add_argument(
            "--html", type=Path, metavar="FILE", help="write a report for a browser"
        )
        parser.add_argument(
            "--fail-above",
            type=values.growth,
            metavar="SHARE",
            help="exit code 3 when B takes longer than A by more than this share "
            "(0.05, 5%%); where step times are not known, when a cause's share rises by more",
        )

    def run(self, args: argparse.Namespace) -> int:
        outputs.check(args.json, args.html)
        from brim.cli.load import load_diagnosis
        from brim.diagnose.compare import compare, worse_by

        a, b = load_diagnosis([args.a]), load_diagnosis([args.b])
        comparison = compare(a, b, names=(str(args.a), str(args.b)))
        _show(comparison, args)
        if args.fail_above is not None and worse_by(comparison) > args.fail_above:
            return OVER_THRESHOLD
        return GOOD


def _show(comparison: Comparison, args: argparse.Namespace) -> None:
    from rich.console import Console

    from brim.report.compare import render, write_html

    if args.json is not None:
        outputs.write_json(args.json, comparison)
    if args.html is not None:
        with outputs.writing(args.html):
            write_html(comparison, args.html)
    render(comparison, Console())
