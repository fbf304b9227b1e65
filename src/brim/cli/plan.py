"""``brim plan``: what a data set becomes, before any GPU time."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.cli import outputs, plan_memory, plan_ranks, values
from brim.errors import GOOD, ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from brim.data.plan import Plan
    from brim.data.prepare import Prepared
    from brim.data.stats import Summary
    from brim.train.device_plan import DevicePlan
    from brim.train.parallel.outlook import Outlook


class Command:
    """Token and patch statistics, packing, balance over ranks, memory, a step's time."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "config", type=Path, metavar="CONFIG.toml", help="a TOML file with model and [data]"
        )
        parser.add_argument(
            "--world", type=values.whole("ranks", 1), nargs="*", default=[2, 4, 8], metavar="N",
            help="numbers of ranks (2 4 8)",
        )  # fmt: skip
        parser.add_argument("--gpu", default="", help="plan for this GPU (default: the one here)")
        plan_ranks.add_arguments(parser)
        parser.add_argument("--model", help="folder or hub id, instead of the file's")
        parser.add_argument(
            "--quarantine",
            type=Path,
            metavar="FILE",
            help="list the refused samples in this JSONL file",
        )
        parser.add_argument(
            "--json", type=Path, metavar="FILE", help="write the figures to this file as well"
        )

    def run(self, args: argparse.Namespace) -> int:
        from msgspec import structs
        from rich.console import Console

        from brim.data.config import DataConfig
        from brim.data.stats import imbalance, summarize
        from brim.train import tables

        outputs.check(args.json, args.quarantine)
        table = tables.read(args.config)
        model = args.model or _model(table, args.config)
        config = DataConfig.of_table(table.get("data", {}), args.config.resolve().parent)
        if args.quarantine:
            args.quarantine.unlink(missing_ok=True)  # it lists this plan's refusals
        console = Console()
        prepared = _prepare(config, model, args.quarantine)
        plans = _plans(table, prepared.plan, args.world)
        summary = summarize(prepared.plan, (), merge=prepared.vision.merge)
        lines = tuple(imbalance(plan, world) for world, plan in plans.items())
        summary = structs.replace(summary, imbalance=lines)
        show(console, prepared, summary)
        _say_odd(console, prepared.plan, [w for w in args.world if w not in plans])
        device = _device(table, args, prepared)
        if device is not None:
            plan_memory.show(console, device)
        ranks = _ranks(table, args, prepared, plans, summary, console) if device is not None else []
        if args.json:
            _write_json(args.json, prepared, summary, device, ranks)
        return GOOD


def _ranks(
    table: dict[str, Any],
    args: argparse.Namespace,
    prepared: Prepared,
    plans: dict[int, Plan],
    summary: Summary,
    console: Console,
) -> list[Outlook]:
    """Memory, traffic and time on each number of ranks that can share a step's rows."""
    from brim.train.config import of_table
    from brim.train.parallel.outlook import prospect

    seen = prospect(
        of_table(table, args.config.resolve().parent),
        prepared,
        args.gpu,
        on_a_host=args.gpus_per_host,
        network_gb_s=args.network_gb_s,
    )
    found = [
        seen.on(line.world, plans[line.world].rows_per_step // line.world, line)
        for line in summary.imbalance
    ]
    if found:
        plan_ranks.show(console, seen, found)
    return found


def _say_odd(console: Console, plan: Plan, worlds: Sequence[int]) -> None:
    if worlds:
        console.print(
            f"{', '.join(map(str, worlds))} ranks cannot share {plan.rows_per_step} rows a step: "
            "set data.rows_per_step to a multiple, or train.gradient_accumulation_steps\n",
            highlight=False,
        )


def _plans(table: dict[str, Any], plan: Plan, worlds: Sequence[int]) -> dict[int, Plan]:
    """For each number of ranks that can share its rows, the plan it would have."""
    train = table.get("train")
    each = train.get("gradient_accumulation_steps", 0) if isinstance(train, dict) else 0
    found = {}
    for world in worlds:
        rows = each * world if isinstance(each, int) and each else plan.rows_per_step
        if rows % world == 0:
            found[world] = replace(plan, rows_per_step=rows, starts=[0], _epochs={})
    return found


def _device(
    table: dict[str, Any], args: argparse.Namespace, prepared: Prepared
) -> DevicePlan | None:
    """Of a configuration that brim train could run; a tokenizer alone has no model to place."""
    model = table.get("model")
    if not isinstance(model, dict) or not (model.get("path") or model.get("random")):
        return None
    if not model.get("random") and not (prepared.tokens.folder / "config.json").exists():
        return None
    from brim.train.device_plan import plan_device

    return plan_device(table, args.config, prepared, args.gpu)


def _model(table: dict[str, Any], path: Path) -> str:
    """Folder or hub id of the tokenizer: of ``[model]`` the processor or the path."""
    model = table.get("model")
    found = model.get("processor") or model.get("path") if isinstance(model, dict) else model
    if not isinstance(found, str):
        raise ConfigError(
            f"{path} names no model with a tokenizer",
            hint='write [model] path = "FOLDER", or give --model FOLDER',
        )
    beside = path.resolve().parent / found
    return str(beside) if beside.is_dir() else found


def _prepare(config: Any, model: str, quarantine: Path | None) -> Prepared:
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    from brim.data.prepare import prepare

    columns = (
        TextColumn("reading headers and texts"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("")
        return prepare(
            config,
            model,
            quarantine=quarantine,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )


def show(console: Console, prepared: Prepared, summary: Summary) -> None:
    """The plan as tables and a histogram."""
    from rich.table import Table

    console.print(_figures(prepared, summary))
    peak = max(bar.count for bar in summary.histogram)
    shape = Table("tokens of a sample", "samples", "", box=None, pad_edge=False)
    for bar in summary.histogram:
        width = round(40 * bar.count / peak) or bool(bar.count)
        shape.add_row(f"{bar.low:,} - {bar.high - 1:,}", f"{bar.count:,}", "█" * width)
    console.print(shape, "")
    if summary.imbalance:
        console.print(_balance(summary), "")
    _say_refused(console, prepared)


def _figures(prepared: Prepared, summary: Summary) -> Any:
    from rich.table import Table

    from brim.units import percent

    plan = prepared.plan
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    tokens = f"{summary.tokens:,} ({percent(summary.visual_tokens / summary.tokens)} visual, "
    tokens += f"{percent(summary.scored_tokens / summary.tokens)} learnt)"
    low, _, middle, high, top = summary.lengths
    rows = f"{summary.rows:,} of {plan.tokens_per_row:,} tokens, {percent(summary.waste)} padding"
    rows += f" (batches of 8 would have {percent(summary.padded_waste)})"
    for name, value in (
        ("samples", f"{summary.samples:,} with {summary.images:,} images an epoch"),
        ("tokens", tokens),
        ("a sample", f"{low:,} - {top:,} tokens, half below {middle:,}, 95 % below {high:,}"),
        ("patches", f"{summary.patches:,}; a row has up to {summary.row_patches[-1]:,}"),
        ("rows", rows),
        ("steps", f"{summary.steps:,} of {plan.rows_per_step} rows an epoch"),
        *((f"longer than a row: {what}", f"{n:,}") for what, n in summary.overlong.items()),
    ):
        table.add_row(name, value)
    if summary.repeated_rows:
        table.add_row("", f"{summary.repeated_rows} rows are repeated to fill the last step")
    return table


def _balance(summary: Summary) -> Any:
    from rich.table import Table

    from brim.units import percent

    table = Table(
        "ranks", "random samples", "random rows", "this plan, a step", "a micro-step",
        title="Waiting for the slowest rank", title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for line in summary.imbalance:
        shares = (line.random_samples, line.random_packed, line.step, line.micro_step)
        table.add_row(str(line.world), *map(percent, shares))
    return table


def _say_refused(console: Console, prepared: Prepared) -> None:
    from rich.markup import escape

    bad, listed = prepared.quarantine, prepared.quarantine.path
    for kind, count in bad.counts.most_common():
        console.print(f"refused: {count:,} {escape(kind)}")
    if bad.total:
        place = f"listed in {escape(str(listed))}" if listed else "list them with --quarantine FILE"
        console.print(f"  {place}")
    for scan in prepared.scans:
        for kind, count in scan.skipped.most_common():
            console.print(f"left out: {count:,} {escape(kind)} (nothing to learn)")
        for note, count in scan.notes.most_common(5):
            console.print(f"note: {count:,} records where {escape(note)}; the last one counts")


def _write_json(
    path: Path,
    prepared: Prepared,
    summary: Summary,
    device: DevicePlan | None,
    ranks: list[Outlook],
) -> None:
    import msgspec

    figures = {
        **msgspec.to_builtins(summary),
        "refused": dict(prepared.quarantine.counts),
        "left_out": {k: n for scan in prepared.scans for k, n in scan.skipped.items()},
    }
    if device is not None:
        figures["device"] = plan_memory.figures(device)
    if ranks:
        figures["ranks"] = [plan_ranks.figures(line) for line in ranks]
    outputs.write_json(path, figures)
