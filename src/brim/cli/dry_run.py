"""``brim train --dry-run``: one step of one rank among many, without the others or a GPU."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from brim.cli import plan_ranks, values
from brim.errors import GOOD, ConfigError

if TYPE_CHECKING:
    from brim.data.prepare import Prepared
    from brim.train.config import Config
    from brim.train.parallel.fake import Rehearsal
    from brim.train.parallel.outlook import Outlook, Prospect


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is rehearsed."""
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="say what a run would take on --world ranks, without GPUs; nothing is trained",
    )
    parser.add_argument("--world", type=values.whole("ranks", 1), metavar="N",
                        help="ranks of --dry-run (1)")  # fmt: skip
    parser.add_argument(
        "--gpu", default="", metavar="GPU", help="for --dry-run: a GPU (default: the one here)"
    )
    plan_ranks.add_arguments(parser)


def dry_run(config: Config, args: argparse.Namespace) -> int:
    """Plan, look ahead and rehearse; raises BrimError as the run would."""
    from rich.console import Console

    from brim.data.stats import imbalance
    from brim.train.parallel.outlook import prospect

    world = args.world or 1
    prepared = _prepared(config, world)
    seen = prospect(
        config,
        prepared,
        args.gpu,
        on_a_host=args.gpus_per_host,
        network_gb_s=args.network_gb_s,
    )
    prepared.plan.share(0, world)  # says so when the ranks cannot
    rows = prepared.plan.rows_per_step // world
    outlook = seen.on(world, rows, imbalance(prepared.plan, world))
    console = Console()
    plan_ranks.show(console, seen, [outlook])
    plan_ranks.show_rehearsal(console, outlook, _rehearsed(config, seen, outlook))
    return GOOD


def _prepared(config: Config, world: int) -> Prepared:
    from brim.data.prepare import prepare

    if not config.data.sources:
        raise ConfigError("data.sources is empty: there is nothing to train on")
    data = config.data
    if config.train.gradient_accumulation_steps:
        rows = config.train.gradient_accumulation_steps * world
        data = replace(data, rows_per_step=rows)
    model = config.model
    return prepare(data, Path(model.processor or model.path or model.random))


def _rehearsed(config: Config, seen: Prospect, outlook: Outlook) -> Rehearsal:
    from brim.train.device_plan import as_trained
    from brim.train.fitting import with_states
    from brim.train.parallel.fake import rehearse
    from brim.train.session import optimizer_of

    option = outlook.option.value
    table = with_states(config, option.states).optimizer
    return rehearse(
        seen.model.config,
        next(seen.model.parameters()).dtype,
        lambda model: as_trained(config, model),
        lambda model: optimizer_of(table, model, config.train.seed),
        seen.row,
        option.parallelism,
        table=config.parallel,
        world=outlook.world,
        on_a_host=min(outlook.world, seen.links.on_a_host),
        rows=outlook.rows,
    )
