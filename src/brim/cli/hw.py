"""``brim hw``: this machine, what it can do, and what follows from it."""

from __future__ import annotations

import argparse
from pathlib import Path

from brim.cli import outputs
from brim.errors import GOOD, BrimError


class Command:
    """Say what this machine is and which settings follow; with --measure, what it reaches."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "folder",
            nargs="?",
            type=Path,
            help="a data folder: describe (and with --measure, read) its storage",
        )
        parser.add_argument(
            "--measure",
            action="store_true",
            help="run short matmul, copy, decode and storage tests (under a minute) and keep "
            "the figures for later reports",
        )
        parser.add_argument("--json", type=Path, metavar="FILE", help="write the facts here too")

    def run(self, args: argparse.Namespace) -> int:
        outputs.check(args.json)
        import msgspec
        from rich.console import Console

        from brim.hardware import attainable
        from brim.observe.machine import collect, measure
        from brim.report.machine import render

        store = attainable.load()
        arch_list: list[str] = []
        notes: list[str] = []
        if args.measure:
            driver = collect(store=store).driver
            with Console(stderr=True).status("measuring") as status:
                store, arch_list, notes = measure(
                    store,
                    folder=args.folder,
                    driver=driver,
                    say=lambda doing: status.update(f"measuring: {doing}"),
                )
            notes.append(f"figures kept in {_keep(store)}")
        machine = collect(folder=args.folder, store=store, arch_list=arch_list)
        machine = msgspec.structs.replace(machine, notes=notes)
        if args.json is not None:
            outputs.write_json(args.json, machine)
        render(machine, Console())
        return GOOD


def _keep(store: object) -> Path:
    from brim.hardware import attainable

    assert isinstance(store, attainable.Store)
    try:
        return attainable.save(store)
    except OSError as error:
        raise BrimError(
            f"{attainable.path()}: cannot be written ({error.strerror})",
            hint="point XDG_CACHE_HOME at a folder that can",
        ) from None
