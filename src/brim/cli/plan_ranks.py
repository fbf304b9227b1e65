"""Several ranks in ``brim plan`` and ``brim train --dry-run``: memory, traffic, a step's time."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from brim.cli import values

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from brim.train.parallel.fake import Rehearsal
    from brim.train.parallel.outlook import Outlook, Prospect
    from brim.train.parallel.traffic import Traffic


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What a machine with many GPUs is like."""
    parser.add_argument(
        "--gpus-per-host", type=values.whole("GPUs", 1), default=8, metavar="N",
        help="GPUs joined by NVLink (8)",
    )  # fmt: skip
    parser.add_argument(
        "--network-gb-s",
        type=values.between(0.001, 1e5, "GB/s"),
        default=50.0,
        metavar="GB/s",
        help="each GPU's share of the network, one direction (50: a port of 400 Gbit/s)",
    )


def show(console: Console, prospect: Prospect, found: Sequence[Outlook]) -> None:
    """A line for each number of ranks."""
    from rich.table import Table

    from brim.units import duration, percent, size

    links = prospect.links
    title = (
        f"Ranks of {prospect.gpu.name}, {links.on_a_host} a host: {links.inside / 1e9:.0f} GB/s "
        f"inside, {links.between / 1e9:.0f} GB/s each between hosts"
    )
    table = Table(
        "ranks", "model", "states", "peak GiB", "sent a step", "predicted step", "exposed", "MFU",
        "tokens/s", title=title, title_justify="left", box=None, pad_edge=False,
    )  # fmt: skip
    for line in found:
        option, forecast = line.option.value, line.forecast
        times = ("", "", "", "")
        if forecast is not None and line.step_s and line.tokens_per_s and line.mfu:
            exposed = percent(forecast.exposed / line.step_s)
            times = (duration(line.step_s), exposed, percent(line.mfu), f"{line.tokens_per_s:,.0f}")
        peak = f"{option.rank.total / 2**30:.1f}{'' if option.fits else ' (too much)'}"
        sent = size(sum(t.sent for t in line.traffic))
        data = option.parallelism.data.value
        table.add_row(str(line.world), data, option.states, peak, sent, *times)
    console.print(table)
    for line in found[-1:]:
        choice = line.option.value.parallelism
        console.print(f"{choice.data.value}: {choice.data.why}", highlight=False)
        if choice.memory:
            console.print(choice.memory, highlight=False)
    console.print()


def show_rehearsal(console: Console, outlook: Outlook, seen: Rehearsal) -> None:
    """Everything about one number of ranks."""
    from rich.table import Table

    from brim.units import duration, percent, size

    option = outlook.option.value
    rank, choice = option.rank, option.parallelism
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_row("model", f"{choice.data.value}: {choice.data.why}")
    if choice.memory:
        table.add_row("", choice.memory)
    table.add_row("states", f"{option.states}: {outlook.option.why}")
    held = f"weights {size(seen.weights)}, gradients {size(seen.gradients)}, states "
    table.add_row("held by rank 0", f"{held}{size(seen.states)}")
    passing = f"gathered weights {size(rank.gathered)}, gradients on their way "
    passing += f"{size(rank.reducing)}, activations {size(rank.activations)}"
    table.add_row("beside them", passing)
    room = f" of {size(option.room)}" if option.room is not None else ""
    table.add_row("peak", f"{size(rank.total)}{room}{'' if option.fits else ': too much'}")
    again = option.recompute
    table.add_row("recomputed", f"{again.text_blocks} text, {again.vision_blocks} vision blocks")
    console.print(table, "", highlight=False)
    if seen.traffic:
        console.print(_sent(seen.traffic), "", highlight=False)
    forecast = outlook.forecast
    if forecast is None or not outlook.step_s or not outlook.mfu or not outlook.tokens_per_s:
        return
    sending = ""
    if forecast.communicating:
        sending = f", sending {duration(forecast.communicating)}, of which "
        sending += f"{percent(forecast.overlapped)} hides behind it"
    console.print(
        f"predicted step {duration(outlook.step_s)}: computing {duration(forecast.compute)}"
        f"{sending}, waiting for the slowest rank {percent(outlook.waiting)}\n"
        f"{outlook.tokens_per_s:,.0f} tokens/s, MFU {percent(outlook.mfu)}",
        highlight=False,
    )


def _sent(traffic: Sequence[Traffic]) -> Any:
    from rich.table import Table

    from brim.units import size

    table = Table(
        "a step sends", "ranks", "calls", "buffers", "sent by a rank",
        box=None, pad_edge=False,
    )  # fmt: skip
    for line in traffic:
        table.add_row(
            line.kind, str(line.ranks), f"{line.calls:,}", size(line.bytes), size(line.sent),
        )  # fmt: skip
    return table


def figures(outlook: Outlook) -> dict[str, Any]:
    """For ``--json``: bytes and seconds."""
    option, forecast = outlook.option.value, outlook.forecast
    return {
        "ranks": outlook.world,
        "rows_of_a_rank": outlook.rows,
        "parallel": option.parallelism.data.value,
        "why": option.parallelism.data.why,
        "shards": option.parallelism.spread.shards,
        "states": option.states,
        "peak": option.rank.total,
        "room": option.room,
        "fits": option.fits,
        "traffic": [
            {"kind": t.kind, "ranks": t.ranks, "calls": t.calls, "bytes": t.bytes, "sent": t.sent}
            for t in outlook.traffic
        ],
        "waiting": outlook.waiting,
        "step_s": outlook.step_s,
        "exposed_s": forecast.exposed if forecast else None,
        "tokens_per_s": outlook.tokens_per_s,
        "mfu": outlook.mfu,
    }
