"""The device in ``brim plan``: memory by kind of optimizer states, and a step's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from brim.errors import ConfigError

if TYPE_CHECKING:
    from rich.console import Console

    from brim.data.prepare import Prepared
    from brim.hardware.gpus import Gpu
    from brim.model.batch import RowCounts
    from brim.model.config import ModelConfig
    from brim.model.kernels import Choices
    from brim.model.qwen3vl import Qwen3VL
    from brim.train.config import Config
    from brim.train.fitting import Option

_LINES = {
    "weights": "weights", "gradients": "gradients", "states": "optimizer states",
    "gathered": "gathered weights", "reducing": "gradients on their way",
    "text": "activations, text", "tower": "activations, tower", "loss": "head and loss",
    "passing": "workspace",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlan:
    """What a run takes of each device."""

    gpu: Gpu | None
    """None: no GPU here, and none was named."""
    choices: Choices
    options: list[Option]
    chosen: Option
    why: str
    seconds: list[float | None]
    """Predicted step of each option; None where the peak is not known."""
    mfu: float | None
    """Of the chosen option's step."""


def plan_device(table: Mapping[str, Any], path: Path, prepared: Prepared, gpu: str) -> DevicePlan:
    """For a configuration file's parsed ``table``; ``gpu``: a name in brim's table, or empty.

    Raises ConfigError for what ``brim train`` would refuse.
    """
    from brim.model.kernels import choose, installed
    from brim.train.config import of_table
    from brim.train.fitting import options, pick
    from brim.train.parallel.choose import World
    from brim.train.parallel.fit import USABLE
    from brim.train.session import largest_row

    config = of_table(table, path.resolve().parent)
    device, memory = _device(gpu)
    capability = device.capability if device else None
    packages = frozenset({"flash-attn-4", "triton"}) if device else installed()
    chosen = choose(
        capability,
        packages,
        dtype=config.model.dtype or None,
        attention=config.model.attention or None,
        compile=config.model.compiled,
    )
    model = _empty_model(config, _shape(config, prepared), chosen)
    rows = prepared.config.rows_per_step
    room = int(memory * USABLE) if memory else None
    world = World(ranks=1, on_a_host=1, rows=rows, room=room)
    found = options(config, model, largest_row(prepared), world)
    picked = pick(found)
    counts = _step_counts(prepared)
    seconds = [_seconds(config, model, counts, device, chosen, option) for option in found]
    at = seconds[found.index(picked.value)]
    return DevicePlan(
        gpu=device,
        choices=chosen,
        options=found,
        chosen=picked.value,
        why=picked.why,
        seconds=seconds,
        mfu=_mfu(config, model, counts, device, chosen, at),
    )


def _device(name: str) -> tuple[Gpu | None, int | None]:
    """The GPU and its bytes: the one that was named, else the one that is here."""
    from brim.hardware.gpus import table

    if name:
        for gpu in table():
            if name.casefold() in (gpu.name.casefold(), *(n.casefold() for n in gpu.driver_names)):
                gib = gpu.memory_gib_seen or gpu.memory_gb * 0.93
                return gpu, int(gib * 2**30)
        near = [g.name for g in table() if name.casefold() in g.name.casefold()]
        raise ConfigError(
            f"--gpu {name}: brim's table has no such GPU",
            hint=f"did you mean {', '.join(near)}?" if near else "such as H200 SXM 141GB, L40S",
        )
    import torch

    if not torch.cuda.is_available():
        return None, None
    from brim.train.records import gpu_of

    here = torch.device("cuda")
    return gpu_of(here), torch.cuda.get_device_properties(here).total_memory


def _shape(config: Config, prepared: Prepared) -> ModelConfig:
    """From the folder, or for a hub id from what came with its tokenizer."""
    from brim.model.config import ModelConfig
    from brim.train.session import shape_of

    if config.model.random or Path(config.model.path).is_dir():
        return shape_of(config.model)
    return ModelConfig.from_folder(prepared.tokens.folder)


def _empty_model(config: Config, shape: ModelConfig, choices: Choices) -> Qwen3VL:
    """The model without memory, trained as the configuration says."""
    import torch

    from brim.model.kernels import DTYPES
    from brim.model.lora import add_lora
    from brim.model.parts import set_trained
    from brim.model.qwen3vl import Qwen3VL, Recompute

    with torch.device("meta"):
        model = Qwen3VL(shape).to(DTYPES[choices.dtype.value])
        if config.lora.r:
            add_lora(model, config.lora.r, config.lora.alpha)
        else:
            set_trained(model, config.trained)
    table = config.model
    model.recompute = Recompute(
        text_blocks=table.recompute_text_blocks,
        vision_blocks=table.recompute_vision_blocks,
        offload=table.offload_activations,
    )
    return model


def _step_counts(prepared: Prepared) -> RowCounts:
    """An average optimizer step of the first epoch."""
    import numpy as np

    from brim.model.batch import RowCounts

    samples, plan = prepared.samples, prepared.plan
    shown = plan.epoch(0).rows.samples
    steps = max(1, plan.steps_in(0))

    def mean(values: Any) -> int:
        return round(float(np.sum(values[shown])) / steps)

    return RowCounts(
        tokens=mean(samples.length),
        scored=mean(samples.scored),
        patches=mean(samples.patches),
        images=mean(samples.images),
        frames=mean(samples.images),
        documents=round(len(shown) / steps),
        token_squares=mean(samples.length.astype(np.float64) ** 2),
        patch_squares=mean(samples.patch_squares),
        longest_document=int(samples.length[shown].max()),
        longest_frame=0,
    )


def _seconds(
    config: Config,
    model: Qwen3VL,
    counts: RowCounts,
    gpu: Gpu | None,
    choices: Choices,
    option: Option,
) -> float | None:
    from brim.model.speed import Way, predict

    if gpu is None:
        return None
    way = Way(
        dtype=choices.dtype.value,
        attention=choices.attention.value,
        fp8=bool(config.model.fp8),
        states=option.states,
        recompute=option.recompute,
    )
    learnt = sum(p.numel() for p in model.parameters() if p.requires_grad)
    found = predict(model.config, counts, gpu, way, trained=config.trained, learnt=learnt)
    return found.total if found else None


def _mfu(
    config: Config,
    model: Qwen3VL,
    counts: RowCounts,
    gpu: Gpu | None,
    choices: Choices,
    seconds: float | None,
) -> float | None:
    from brim.hardware.gpus import peak_flops
    from brim.model import flops

    peak = peak_flops(gpu, choices.dtype.value) if gpu else None
    if seconds is None or peak is None:
        return None
    return flops.step(model.config, counts, config.trained).total / seconds / peak


def show(console: Console, plan: DevicePlan) -> None:
    """Columns: kinds of optimizer states; the chosen one is marked."""
    from rich.table import Table

    from brim.units import duration, percent

    name = plan.gpu.name if plan.gpu else "any device: none is here, --gpu NAME plans for one"
    table = Table(
        title=f"Memory of a step, GiB, on {name}", title_justify="left", box=None, pad_edge=False
    )
    table.add_column("optimizer states")
    for option in plan.options:
        mark = " ←" if option is plan.chosen else ""
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
