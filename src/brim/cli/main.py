"""The command line: a verb a module, imported only when it is used."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn, Protocol

from brim import __version__
from brim.errors import FAILED, WRONG_USAGE, BrimError


class Verb(Protocol):
    """What a module of ``brim.cli`` offers as its class ``Command``; heavy imports live in run."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


# verb → one line of help; the module is brim.cli.<verb>
VERBS = {
    "diagnose": "say what the device loses and why, in a command, a trace or an earlier run",
    "tune": "apply remedies to a job one at a time, measure each, keep what helps",
    "compare": "two runs or traces side by side, by cause",
    "plan": "what a data set becomes: tokens, rows, padding, balance, before any GPU time",
    "train": "fine-tune a Qwen3-VL: packed rows, fused kernels, exact resume",
    "demo": "the whole story on this machine: a planted fault, its diagnosis, the cure",
    "watch": "see devices, processes and the running job live; export them to Prometheus",
    "hw": "say what this machine is, what it can do and which settings follow",
}

_EPILOG = """\
examples:
  brim diagnose -- python train.py --lr 1e-5     watch an unmodified training command
  brim diagnose -- torchrun --nproc-per-node 8 train.py
  brim diagnose runs/2026-12-01T10-00-00-train   the verdict of an earlier run
"""


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in two lines; the whole usage is a --help away."""

    def error(self, message: str) -> NoReturn:
        self.exit(WRONG_USAGE, f"{self.prog}: {message}\n  see {self.prog} --help\n")


def _parser(verb: str | None) -> tuple[argparse.ArgumentParser, Verb | None]:
    """The parser, with the arguments of ``verb`` alone: other verbs are not imported."""
    parser = _Parser(
        prog="brim",
        description="Finds what a GPU loses while it trains, says the fix and proves the gain.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"brim {__version__}")
    commands = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    command: Verb | None = None
    for name, text in VERBS.items():
        sub = commands.add_parser(
            name,
            help=text,
            description=text[0].upper() + text[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            add_help=True,
        )
        if name == verb:
            command = importlib.import_module(f"brim.cli.{name}").Command()
            command.add_arguments(sub)
    return parser, command


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """What stands before ``--`` and what stands behind: the user's command, never parsed."""
    if "--" not in words:
        return words, []
    at = words.index("--")
    return words[:at], words[at + 1 :]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; the value is the process's exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    verb = next((w for w in words if not w.startswith("-")), None)
    words, behind = _split(words)
    parser, command = _parser(verb)
    args, unknown = parser.parse_known_args(words)
    if unknown:
        # argparse would say so of "brim", whose help knows no verb's options
        parser.exit(WRONG_USAGE, f"brim {verb}: unrecognized arguments: {' '.join(unknown)}\n"
                                 f"  see brim {verb} --help\n")  # fmt: skip
    if behind:
        if not hasattr(args, "command"):
            parser.error(f"{verb} takes no command after --")
        args.command = behind
    assert command is not None, "argparse accepted a verb that is not in VERBS"
    try:
        return command.run(args)
    except BrimError as error:
        print(f"brim {verb}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # the reader of a pipe went away (`brim … | head`); silence the flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    raise SystemExit(main())
