"""The device in ``brim plan``: memory by kind of optimizer states, and a step's time."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from brim.train.device_plan import DevicePlan
    from brim.train.fitting import Option

_LINES = {
    "weights": "weights", "gradients": "gradients", "states": "optimizer states",
    "gathered": "gathered weights", "reducing": "gradients on their way",
    "text": "activations, text", "tower": "activations, tower", "loss": "head and loss",
    "passing": "workspace",
}  # fmt: skip


def show(console: Console, plan: DevicePlan) -> None:
    """Columns: kinds of optimizer states; the chosen one is marked."""
    from rich.table import Table

    from brim.units import duration, percent

    name = plan.gpu.name if plan.gpu else "any GPU from Ampere on"
    table = Table(
        title=f"Memory of a step, GiB, on {name}", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("optimizer states")
    for option in plan.options:
        mark = " ←" if option is plan.chosen and option.room is not None else ""
        table.add_column(f"{option.states}{mark}", justify="right")
    for field, label in _LINES.items():
        values = [_bytes(option, field) for option in plan.options]
        if any(values):
            table.add_row(label, *(f"{v / 2**30:.1f}" for v in values))
    table.add_row("[bold]peak", *(f"[bold]{o.rank.total / 2**30:.1f}" for o in plan.options))
    if plan.options[0].room is not None:
        table.add_row("of", *(f"{(o.room or 0) / 2**30:.1f}" for o in plan.options))
        table.add_row("fits", *("yes" if o.fits else "no" for o in plan.options))
    table.add_row("recomputed text blocks", *(_again(o) for o in plan.options))
    table.add_row("and vision blocks", *(str(o.recompute.vision_blocks) for o in plan.options))
    if any(plan.seconds):
        cells = ["" if s is None else duration(s) for s in plan.seconds]
        table.add_row("predicted step", *cells)
    console.print(table)
    if plan.chosen.room is None:
        console.print("no GPU here: --gpu NAME says which of these fits, and how long a step takes")
    else:
        console.print(f"{plan.chosen.states}: {plan.why}", highlight=False)
    if plan.mfu is not None:
        console.print(
            f"predicted MFU {percent(plan.mfu)}, within 10 % of what an H200 measured; elsewhere a "
            "guess by the same shares of peak and bandwidth",
            highlight=False,
        )
    console.print()


def _bytes(option: Option, field: str) -> int:
    """What shards hold is the rank's, activations are those of a whole row."""
    held = {f.name for f in fields(option.rank)}
    return int(getattr(option.rank if field in held else option.whole, field))


def _again(option: Option) -> str:
    blocks = str(option.recompute.text_blocks)
    return f"{blocks}, inputs on the host" if option.recompute.offload else blocks


def figures(plan: DevicePlan) -> dict[str, Any]:
    """For ``--json``: bytes and seconds."""
    return {
        "gpu": plan.gpu.name if plan.gpu else None,
        "chosen": plan.chosen.states,
        "why": plan.why,
        "mfu": plan.mfu,
        "options": [
            {
                "kind": option.states,
                **{field: _bytes(option, field) for field in _LINES},
                "peak": option.rank.total,
                "room": option.room,
                "fits": option.fits,
                "recompute_text_blocks": option.recompute.text_blocks,
                "recompute_vision_blocks": option.recompute.vision_blocks,
                "offload": option.recompute.offload,
                "step_s": seconds,
            }
            for option, seconds in zip(plan.options, plan.seconds, strict=True)
        ],
    }
