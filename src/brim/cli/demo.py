"""``brim demo``: a planted fault, its verdict, ``brim tune`` curing it, and ``brim train``."""

from __future__ import annotations

import argparse
import contextlib
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli import demo_train
from brim.errors import FAILED, GOOD, BrimError, MissingExtra, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from brim.record.findings import Diagnosis
    from brim.record.ladder import Ladder

PLANTED = "input.main-process"
SCRIPTS = ("photographs.py", "finetune.py")
PHOTOS, STEPS, BATCH = 48, 80, 4
"""48 photographs with 7 questions each: 336 samples, a few more than 80 steps of 4 need, so that
no epoch ends within a run."""
BUDGET, RUNS = "100s", 4
"""Runs that a clear gain takes: before and after, twice; some 10 s each."""
LONGEST_S = 300.0
"""No command of the story takes this long; one that does hangs."""
_STEP_FILES = "runs/*/steps.*.jsonl"
CROWDED = 0.1
"""Share of the time that the training thread waits for a core, from which on it is mentioned."""
_CROWDED = "the training thread was ready, but without a core,"
_NEEDS = {"torch": "torch", "transformers": "transformers", "accelerate": "accelerate",
          "PIL": "pillow"}  # fmt: skip


class Command:
    """Train a tiny Qwen3-VL with a planted fault, diagnose it, have it cured."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = "Takes two to three minutes; needs neither a GPU nor the network."
        parser.add_argument(
            "--keep",
            type=Path,
            metavar="DIR",
            help="keep the scripts, photographs and runs in this folder (default: nothing is left)",
        )

    def run(self, args: argparse.Namespace) -> int:
        from rich.console import Console

        for module, package in _NEEDS.items():
            if find_spec(module) is None:
                raise MissingExtra("the demo's training script", package=package, extra="train")
        with _workplace(args.keep) as folder:
            code = Story(folder, Console(), Console(stderr=True)).tell()
        if args.keep is None:
            print("\nNothing was kept; brim demo --keep DIR keeps the scripts and all runs.")
        else:
            print(
                f"\nKept in {args.keep}: finetune.py, photos, runs, tune, before.json, ladder.json."
            )
        return code


@contextlib.contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    """The folder of the user's choice, or one that is gone afterwards."""
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="brim-demo-") as name:
            yield Path(name)
        return
    try:
        keep.mkdir(parents=True, exist_ok=True)
        used = any(keep.iterdir())
    except OSError as error:
        raise UsageError(f"{keep}: cannot be used as a folder ({error.strerror})") from None
    if used:
        raise UsageError(f"{keep} is not empty", hint="give --keep a new folder")
    yield keep.resolve()


class Story:
    """What happens in ``folder``: results to ``out``, progress to ``err``."""

    def __init__(self, folder: Path, out: Console, err: Console) -> None:
        from brim.report.paper import Paper

        self.folder, self.out, self.err = folder, out, err
        self.paper = Paper(out)

    def tell(self) -> int:
        from brim.report.terminal import render

        self._photographs()
        before = self._train("before")
        render(before, self.out)
        if not before.findings or before.findings[0].cause != PLANTED:
            self._unexpected(before)
            return FAILED
        self._explain(before)
        ladder = self._tune()
        self._show(ladder, before)
        demo_train.tell(self, before)
        return GOOD if ladder.rungs else FAILED

    def _photographs(self) -> None:
        for name in SCRIPTS:
            text = resources.files("brim.cli").joinpath("demo_files", f"{name}.in").read_text()
            (self.folder / name).write_text(text)
        photos = self.folder / "photos"
        self.run(
            [sys.executable, "photographs.py", "photos", str(PHOTOS)],
            f"writing {PHOTOS} photographs",
            PHOTOS,
            lambda: len(list(photos.glob("*.jpg"))),
        )

    def _train(self, name: str) -> Diagnosis:
        """Run the script under ``brim diagnose``, as a user would; its findings, with the rate."""
        from brim.record import findings

        self._brim(
            ["diagnose", "--json", f"{name}.json"],
            f"training {STEPS} steps under brim diagnose",
            STEPS,
            lambda: sum(_lines(path) for path in self.folder.glob(_STEP_FILES)),
        )
        found = with_rate(findings.read(self.folder / f"{name}.json"))
        return with_crowding(found, *(path.parent for path in self.folder.glob(_STEP_FILES)))

    def _tune(self) -> Ladder:
        """The same command under ``brim tune``, as a user would."""
        from brim.record import ladder

        self._brim(
            ["tune", "--budget", BUDGET, "--steps", "30", "--dir", "tune", "--json", "ladder.json"],
            "runs under brim tune, in turn",
            RUNS,
            lambda: _lines(self.folder / "tune" / "trials.jsonl"),
        )
        return ladder.read(self.folder / "ladder.json")

    def _brim(
        self, options: Sequence[str], doing: str, total: int, done: Callable[[], int]
    ) -> None:
        """Say the command as a user types it, and run it."""
        job = ["finetune.py", "--photos", "photos", "--steps", str(STEPS)]
        job += ["--batch-size", str(BATCH)]
        self.say(f"$ {shlex.join(['brim', *options, '--', 'python', *job])}", "bold cyan")
        command = [sys.executable, "-m", "brim", *options, "--", sys.executable, *job]
        self.run(command, doing, total, done)

    def run(
        self,
        command: Sequence[str],
        doing: str,
        total: int,
        done: Callable[[], int],
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """Wait for a command with a progress bar; what it prints goes to a file.

        Raises :class:`BrimError` with its last lines when it fails, or hangs.
        """
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        log = self.folder / "output.log"
        with log.open("wb") as file, Progress(*columns, console=self.err) as bar:
            task = bar.add_task(doing, total=total)
            child = subprocess.Popen(
                command,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                env=env,
            )
            try:
                code = _wait(child, lambda: bar.update(task, completed=min(done(), total)))
            finally:
                child.kill()
                child.wait()
        if code != 0:
            last = " | ".join(log.read_text(errors="replace").strip().splitlines()[-2:])
            how = "did not end" if code is None else f"ended with exit code {code}"
            raise BrimError(f"{doing}: {shlex.join(command)} {how}", hint=last)

    def _explain(self, before: Diagnosis) -> None:
        finding = before.findings[0]
        self.say()
        if finding.where is not None:
            text = _source_line(Path(finding.where.file), finding.where.line)
            self.say(f"Line {finding.where.line} of finetune.py is: {text}")
        self.say(
            "Nothing in the script says that it runs between two steps: that is what "
            "dataloader_num_workers=0 means, the Trainer's default. Now brim applies the remedy to "
            "the same script from outside, runs both in turn, and keeps what is better beyond the "
            "noise:"
        )
        self.say()

    def _show(self, ladder: Ladder, before: Diagnosis) -> None:
        from brim.report.ladder import render

        render(ladder, self.out)
        if not ladder.rungs or any(_CROWDED in note for note in before.notes):
            self.say()
            self.say("Other programs take cores on this machine: run this again when it is quiet.")

    def _unexpected(self, before: Diagnosis) -> None:
        found = before.findings[0].cause if before.findings else "no finding"
        self.say()
        self.say(
            f"The planted fault is {PLANTED}, and the verdict is {found}: something else on this "
            "machine takes more of the time. Try again when it is idle."
        )

    def say(self, text: str = "", style: str = "") -> None:
        if text:
            self.paper.line(self.paper.text(text, style))
        else:
            self.paper.blank()


def with_rate(diagnosis: Diagnosis) -> Diagnosis:
    """Add ``samples_per_s``: the demo knows the batch size, which hooks cannot know."""
    import msgspec

    if diagnosis.window.wall_s <= 0:
        return diagnosis
    rate = BATCH * diagnosis.window.steps / diagnosis.window.wall_s
    return msgspec.structs.replace(diagnosis, metrics={"samples_per_s": rate, **diagnosis.metrics})


def with_crowding(diagnosis: Diagnosis, *run_dirs: Path) -> Diagnosis:
    """Add a note when the training thread often waited for a core: then times say little."""
    import msgspec

    from brim.record.run import read_run

    steps = [s for d in run_dirs for p in read_run(d).processes for s in p.steps]
    wall = sum(s.wall for s in steps)
    share = sum(s.run_delay or 0.0 for s in steps) / wall if wall > 0 else 0.0
    if share < CROWDED:
        return diagnosis
    note = f"{_CROWDED} {share:.0%} of the time: other programs use this machine"
    return msgspec.structs.replace(diagnosis, notes=[*diagnosis.notes, note])


def _wait(child: subprocess.Popen[bytes], look: Callable[[], None]) -> int | None:
    """The exit code; None when it is still running after ``LONGEST_S``."""
    end = time.monotonic() + LONGEST_S
    while time.monotonic() < end:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = child.wait(0.5)
            look()
            return code
        look()
    return None


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def _source_line(path: Path, line: int) -> str:
    """The text of a line; empty where it cannot be read."""
    with contextlib.suppress(OSError, IndexError):
        return path.read_text().splitlines()[line - 1].strip()
    return ""
