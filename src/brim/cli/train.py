"""``brim train``: the fast trainer."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli import dry_run
from brim.errors import GOOD, WRONG_USAGE, BrimError, InputError, UsageError

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from brim.train.config import Config
    from brim.train.loop import Progress
    from brim.train.parallel.ranks import Ranks
    from brim.train.session import Session


class Command:
    """Fine-tune a Qwen3-VL as a TOML file says; continues where an earlier run stopped."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "config", type=Path, metavar="CONFIG.toml", help="a TOML file, see docs/train.md"
        )
        parser.add_argument(
            "--set",
            action="append",
            default=[],
            dest="settings",
            metavar="TABLE.FIELD=VALUE",
            help="override a field; may be given several times",
        )
        parser.add_argument(
            "--print-config", action="store_true", help="print every field as it will be and stop"
        )
        parser.add_argument(
            "--export",
            type=Path,
            metavar="FOLDER",
            help="make a Hugging Face model of the newest checkpoint and stop",
        )
        dry_run.add_arguments(parser)

    def run(self, args: argparse.Namespace) -> int:
        _refuse_idle(args)
        # segments that grow: rows of changing patch counts fragment fixed ones; torch reads this
        # when it is imported
        os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
        from brim.train import tables
        from brim.train.config import load

        config = load(args.config, args.settings)
        if args.print_config:
            print(tables.dump(config), end="")
            return GOOD
        if args.dry_run:
            return dry_run.dry_run(config, args)
        if args.export:
            return _export(config, args.export)
        from brim.train.parallel.ranks import join
        from brim.train.session import start
        from brim.train.signals import exit_code

        ranks = join()
        with _named(ranks), _Screen(ranks) as screen:
            session = start(
                config,
                ["brim", *sys.argv[1:]],
                say=screen.say,
                show=screen.show,
                scanned=screen.scanned,
                ranks=ranks,
            )
            finished = _train(session, screen)
        if ranks.first:
            _account(session.trainer.records.folder)
        ranks.leave()
        return exit_code(finished=finished)


def _refuse_idle(args: argparse.Namespace) -> None:
    """An option that would do nothing is a misunderstanding; the user is told of it."""
    if (args.world or args.gpu) and not args.dry_run:
        option = "--world" if args.world else "--gpu"
        raise UsageError(
            f"{option} is for --dry-run alone",
            hint="a run has the ranks that start it: torchrun --nproc-per-node N -m brim train …",
        )
    stopping = {"--print-config": args.print_config, "--export": args.export}
    asked = [*filter(stopping.get, stopping), *(["--dry-run"] if args.dry_run else [])]
    if len(asked) > 1:
        raise UsageError(f"{' and '.join(asked)} exclude each other", hint="give one of them")


def _export(config: Config, folder: Path) -> int:
    """On any machine that holds the model in memory once, whatever ranks trained it."""
    from brim.model.weights import fetch
    from brim.train.saving import folders
    from brim.train.saving.export import export

    checkpoints = Path(config.output_dir) / "checkpoints"
    newest = folders.newest(checkpoints)
    if newest is None:
        raise InputError(f"{checkpoints} holds no whole checkpoint")
    source = config.model.path or config.model.processor
    export(
        newest, folder, companions=fetch(source, config.model.revision or None) if source else None
    )
    print(f"{newest.name} is in {folder}")
    return GOOD


@contextmanager
def _named(ranks: Ranks) -> Iterator[None]:
    """Errors say which rank they are of; what is wrong with the command, only the first says."""
    try:
        yield
    except UsageError:
        if not ranks.first:
            raise SystemExit(WRONG_USAGE) from None
        raise
    except BrimError as error:
        if ranks.world > 1:
            error.args = (f"{ranks.name}: {error.args[0]}", *error.args[1:])
        raise


def _train(session: Session, screen: _Screen) -> bool:
    """Run, export, close; whatever happens, the records say how it ended."""
    trainer = session.trainer
    code, why = 1, "failed"
    try:
        finished = trainer.run()
        wanted = finished and trainer.config.train.save_at_end
        if wanted and not trainer.ranks.told(session.exported.exists()):
            trainer.export(session.exported, session.folder)
        loss = trainer.evaluate() if finished else None
        if loss is not None:
            screen.tell(f"evaluation loss {loss:.4f}")
        if wanted:
            screen.tell(f"the trained model is in {session.exported}")
        code, why = 0, "finished" if finished else "stopped by a signal"
        return finished
    finally:
        session.rows.close()
        trainer.records.close(code, why)
        screen.tell(f"records: {trainer.records.folder}")


def _account(folder: Path) -> None:
    """Where the device's time went, from the run's own records; needs its profiler window."""
    from brim.record.run import read_run

    if not read_run(folder).traces:
        return
    from rich.console import Console

    from brim.cli.measured import judge
    from brim.report.terminal import render

    render(judge(folder), Console(stderr=True))


class _Screen:
    """A progress bar with the figures that matter, and lines above it; ranks but the first say
    only what is theirs alone."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._bar: Bar | None = None
        self._task: TaskID | None = None
        self._scan: TaskID | None = None

    def __enter__(self) -> _Screen:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )

        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[figures]}"),
            console=Console(stderr=True),
            disable=not self.ranks.first,
        )
        self._bar.start()
        return self

    def __exit__(self, *error: object) -> None:
        assert self._bar is not None
        self._bar.stop()

    def say(self, line: str) -> None:
        """What this rank has to say."""
        assert self._bar is not None
        whose = "" if self.ranks.first else f"{self.ranks.name}: "
        self._bar.console.print(f"{whose}{line}", markup=False, highlight=False)

    def tell(self, line: str) -> None:
        """What all ranks know."""
        if self.ranks.first:
            self.say(line)

    def scanned(self, done: int, total: int) -> None:
        assert self._bar is not None
        if self._scan is None:
            self._scan = self._bar.add_task("reading headers", figures="")
        self._bar.update(self._scan, completed=done, total=total)

    def show(self, progress: Progress) -> None:
        assert self._bar is not None
        if self._task is None:
            self._task = self._bar.add_task("training", figures="")
        self._bar.update(
            self._task, completed=progress.step, total=progress.steps, figures=figures(progress)
        )


def figures(progress: Progress) -> str:
    """``loss 1.234  12.3 k tokens/s  9.8 images/s  MFU 51.0 %  input wait 0.2 %``."""
    from brim.units import percent

    parts = [
        f"loss {progress.loss:.4f}",
        f"{progress.tokens_per_s:,.0f} tokens/s",
        f"{progress.images_per_s:.1f} images/s",
    ]
    if progress.mfu is not None:
        parts.append(f"MFU {percent(progress.mfu)}")
    parts.append(f"input wait {percent(progress.input_wait)}")
    return "  ".join(parts)
