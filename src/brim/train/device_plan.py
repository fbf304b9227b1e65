"""What a run will take of a device, before there is one: memory, states, a step's time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from brim.data.prepare import Prepared
from brim.errors import ConfigError
from brim.hardware.gpus import Gpu, peak_flops, table
from brim.model import flops
from brim.model.batch import RowCounts
from brim.model.config import ModelConfig
from brim.model.kernels import DTYPES, Choices, choose, installed
from brim.model.lora import add_lora
from brim.model.parts import set_trained
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.model.speed import Way, predict
from brim.train.config import Config, of_table
from brim.train.fitting import Option, options, pick
from brim.train.parallel.choose import World
from brim.train.parallel.fit import USABLE
from brim.train.records import gpu_of
from brim.train.session import largest_row, shape_of

_ANY = (8, 0)
"""Capability of the GPU that a plan without one is for: half precision, compiled."""
_SEEN = 0.93
"""Of the marketed gigabytes, in GiB, where the table does not say what a driver shows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DevicePlan:
    """What a run takes of one device that holds all of the model."""

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


def plan_device(
    config_table: Mapping[str, Any], path: Path, prepared: Prepared, gpu: str
) -> DevicePlan:
    """For the parsed configuration file at ``path``; ``gpu``: a name in brim's table, or empty.

    Raises ConfigError for what ``brim train`` would refuse.
    """
    config = of_table(config_table, path.resolve().parent)
    device, memory = named_gpu(gpu)
    chosen = choose(
        device.capability if device else _ANY,
        frozenset({"flash-attn-4", "triton"}) if gpu else installed(),
        dtype=config.model.dtype or None,
        attention=config.model.attention or None,
        compile=config.model.compiled,
    )
    model = empty_model(config, planned_shape(config, prepared), chosen)
    world = World(
        ranks=1,
        on_a_host=1,
        rows=prepared.config.rows_per_step,
        room=int(memory * USABLE) if memory else None,
    )
    found = options(config, model, largest_row(prepared), world)
    picked = pick(found)
    counts = step_counts(prepared)
    seconds = [_seconds(config, model, counts, device, chosen, option) for option in found]
    return DevicePlan(
        gpu=device,
        choices=chosen,
        options=found,
        chosen=picked.value,
        why=picked.why,
        seconds=seconds,
        mfu=_mfu(config, model, counts, device, chosen, seconds[found.index(picked.value)]),
    )


def named_gpu(name: str) -> tuple[Gpu | None, int | None]:
    """The GPU and its bytes: the one that was named, else the one that is here."""
    if not name:
        if not torch.cuda.is_available():
            return None, None
        here = torch.device("cuda")
        return gpu_of(here), torch.cuda.get_device_properties(here).total_memory
    for gpu in table():
        if name.casefold() in (gpu.name.casefold(), *(n.casefold() for n in gpu.driver_names)):
            return gpu, int((gpu.memory_gib_seen or gpu.memory_gb * _SEEN) * 2**30)
    near = [g.name for g in table() if name.casefold() in g.name.casefold()]
    raise ConfigError(
        f"--gpu {name}: brim's table has no such GPU",
        hint=f"did you mean {', '.join(near)}?" if near else "such as H200 SXM 141GB, L40S",
    )


def planned_shape(config: Config, prepared: Prepared) -> ModelConfig:
    """From the folder, or for a hub id from what came with its tokenizer."""
    if config.model.random or Path(config.model.path).is_dir():
        return shape_of(config.model)
    return ModelConfig.from_folder(prepared.tokens.folder)


def empty_model(config: Config, shape: ModelConfig, choices: Choices) -> Qwen3VL:
    """The model without memory, trained as the configuration says."""
    with torch.device("meta"):
        model = Qwen3VL(shape).to(DTYPES[choices.dtype.value])
    as_trained(config, model)
    model.recompute = Recompute(
        text_blocks=config.model.recompute_text_blocks,
        vision_blocks=config.model.recompute_vision_blocks,
        offload=config.model.offload_activations,
    )
    return model


def as_trained(config: Config, model: Qwen3VL) -> None:
    """Adapters, or frozen parts, as the configuration says."""
    if config.lora.r:
        add_lora(model, config.lora.r, config.lora.alpha)
    else:
        set_trained(model, config.trained)


def step_counts(prepared: Prepared) -> RowCounts:
    """An average optimizer step of the first epoch."""
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
    peak = peak_flops(gpu, choices.dtype.value) if gpu else None
    if seconds is None or peak is None:
        return None
    return flops.step(model.config, counts, config.trained).total / seconds / peak
