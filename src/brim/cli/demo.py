"""``brim demo``: a planted fault, its verdict, the cure by hand, and what the cure brought."""

from __future__ import annotations

import argparse
import contextlib
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from brim.errors import FAILED, GOOD, BrimError, MissingExtra, UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from brim.record.findings import Diagnosis

PLANTED = "input.main-process"
SCRIPTS = ("photographs.py", "finetune.py")
PHOTOS, STEPS, BATCH = 48, 80, 4
"""48 photographs with 7 questions each: 336 samples, a few more than 80 steps of 4 need, so that
no epoch ends within a run."""
LONGEST_S = 300.0
"""A run takes some 20 s; one that takes this long hangs."""
_STEP_FILES = "runs/*/steps.*.jsonl"
CROWDED = 0.1
"""Share of the time that the training thread waits for a core, from which on it is mentioned."""
_CROWDED = "the training thread was ready, but without a core,"
_NEEDS = {"torch": "torch", "transformers": "transformers", "accelerate": "accelerate",
          "PIL": "pillow"}  # fmt: skip


class Command:
    """Train a tiny Qwen3-VL with a planted fault, diagnose it, cure it, compare."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.epilog = "Takes about a minute; needs neither a GPU nor the network."
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
            print("\nNothing was kept; brim demo --keep DIR keeps the scripts and both runs.")
        else:
            print(f"\nKept in {args.keep}: finetune.py, photos, runs, before.json, after.json.")
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
        workers = named_workers(before)
        if workers is None:
            self._unexpected(before)
            return FAILED
        self._explain(before, workers)
        self._compare(before, self._train("after", "--workers", str(workers)))
        return GOOD

    def _photographs(self) -> None:
        for name in SCRIPTS:
            text = resources.files("brim.cli").joinpath("demo_files", f"{name}.in").read_text()
            (self.folder / name).write_text(text)
        photos = self.folder / "photos"
        self._run(
            [sys.executable, "photographs.py", "photos", str(PHOTOS)],
            f"writing {PHOTOS} photographs",
            PHOTOS,
            lambda: len(list(photos.glob("*.jpg"))),
        )

    def _train(self, name: str, *arguments: str) -> Diagnosis:
        """Run the script under ``brim diagnose``, as a user would; its findings, with the rate."""
        from brim.record import findings

        job = ["finetune.py", "--photos", "photos", "--steps", str(STEPS)]
        job += ["--batch-size", str(BATCH), *arguments]
        options = ["diagnose", "--json", f"{name}.json"]
        self._say(f"$ {shlex.join(['brim', *options, '--', 'python', *job])}", "bold cyan")
        seen = set(self.folder.glob(_STEP_FILES))
        self._run(
            [sys.executable, "-m", "brim", *options, "--", sys.executable, *job],
            f"training {STEPS} steps under brim diagnose",
            STEPS,
            lambda: sum(_lines(path) for path in set(self.folder.glob(_STEP_FILES)) - seen),
        )
        found = with_rate(findings.read(self.folder / f"{name}.json"))
        fresh = set(self.folder.glob(_STEP_FILES)) - seen
        return with_crowding(found, *(path.parent for path in fresh))

    def _run(self, command: Sequence[str], doing: str, total: int, done: Callable[[], int]) -> None:
        """Wait for a command with a progress bar; what it prints goes to a file.

        Raises :class:`BrimError` with its last lines when it fails, or hangs.
        """
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        log = self.folder / "output.log"
        with log.open("wb") as file, Progress(*columns, console=self.err) as bar:
            task = bar.add_task(doing, total=total)
            child = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=file, stderr=file
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

    def _explain(self, before: Diagnosis, workers: int) -> None:
        finding = before.findings[0]
        self._say()
        if finding.where is not None:
            text = _source_line(Path(finding.where.file), finding.where.line)
            self._say(f"Line {finding.where.line} of finetune.py is: {text}")
        self._say(
            "Nothing in the script says that it runs between two steps: that is what "
            "dataloader_num_workers=0 means, the Trainer's default. The script passes "
            f"--workers {workers} on as dataloader_num_workers={workers}; nothing else changes:"
        )
        self._say()

    def _compare(self, before: Diagnosis, after: Diagnosis) -> None:
        from brim.diagnose.compare import compare
        from brim.report import words
        from brim.report.compare import render

        self._say(words.verdict(after))
        for note in after.notes:
            self._say(f"({note})")
        self._say()
        self._say("$ brim compare before.json after.json", "bold cyan")
        render(compare(before, after, names=("before", "after")), self.out)
        self._say()
        crowded = any(_CROWDED in note for d in (before, after) for note in d.notes)
        self._say(
            "Other programs took cores from these runs: do not trust the ratio, and run this "
            "again on a quiet machine."
            if crowded
            else "One run each, one after the other: the interval covers the noise between steps, "
            "not what else this machine did meanwhile."
        )

    def _unexpected(self, before: Diagnosis) -> None:
        found = before.findings[0].cause if before.findings else "no finding"
        self._say()
        self._say(
            f"The planted fault is {PLANTED}, and the verdict is {found}: something else on this "
            "machine takes more of the time. Try again when it is idle."
        )

    def _say(self, text: str = "", style: str = "") -> None:
        if text:
            self.paper.line(self.paper.text(text, style))
        else:
            self.paper.blank()


def named_workers(diagnosis: Diagnosis) -> int | None:
    """The number in the first remedy, if the verdict is the planted fault."""
    if not diagnosis.findings or diagnosis.findings[0].cause != PLANTED:
        return None
    for remedy in diagnosis.findings[0].remedies:
        named = re.search(r"dataloader_num_workers=(\d+)", remedy.settings.get("hf-trainer", ""))
        if named:
            return int(named[1])
    return None


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
    return path.read_bytes().count(b"\n")


def _source_line(path: Path, line: int) -> str:
    """The text of a line; empty where it cannot be read."""
    with contextlib.suppress(OSError, IndexError):
        return path.read_text().splitlines()[line - 1].strip()
    return ""
