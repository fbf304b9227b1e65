"""From a configuration to a trainer that is ready to run on this machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from brim.data.config import DataConfig
from brim.data.indices import POSITIONS_SIDE
from brim.data.prepare import Prepared, prepare
from brim.errors import ConfigError, InputError
from brim.model.config import FAMILY, ModelConfig
from brim.model.kernels import DTYPES, Choices, choose, compile_blocks, installed, kernels
from brim.model.lora import add_lora
from brim.model.memory import RowShape, estimate, fit
from brim.model.parts import set_trained
from brim.model.precision import use_fp8
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.model.weights import fetch, load, random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.checkpoint import Checkpoints
from brim.train.config import Config, ModelTable, OptimizerTable
from brim.train.loop import Progress, Trainer
from brim.train.records import Records, peak_flops
from brim.train.source import LoadedRows, one_row_at_a_time
from brim.train.step import TrainStep
from brim.train.tables import flat
from brim.units import size

USABLE = 0.94
"""Of a device's memory: the rest is the context's, the libraries' and fragmentation's."""
Scanned = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Session:
    """A trainer with what belongs to it."""

    trainer: Trainer
    rows: LoadedRows
    choices: Choices
    folder: Path | None
    """Where the model came from; its tokenizer files go with the trained model."""

    @property
    def output(self) -> Path:
        return Path(self.trainer.config.output_dir)

    @property
    def exported(self) -> Path:
        """Folder of the trained model."""
        return self.output / "model"


def start(
    config: Config,
    command: list[str],
    *,
    say: Callable[[str], None] = print,
    show: Callable[[Progress], None] = lambda _: None,
    scanned: Scanned = lambda done, total: None,
) -> Session:
    """Everything up to the first step.  Raises :class:`brim.errors.BrimError`."""
    if not config.data.sources:
        raise ConfigError("data.sources is empty: there is nothing to train on")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    choices = _choices(config.model, device)
    for name, reason in choices.reasons().items():
        say(f"{name:13} {reason}")
    torch.backends.cuda.matmul.allow_tf32 = choices.tf32.value
    torch.backends.cudnn.allow_tf32 = choices.tf32.value
    folder = _folder(config.model)
    output = Path(config.output_dir)
    records = Records(
        output / "records",
        command,
        device,
        report_to=config.train.report_to,
        settings=flat(config),
        say=say,
    )
    dtype = DTYPES[choices.dtype.value]
    rows = _rows(config, folder, device, dtype, records.folder, scanned)
    model = _model(config, folder, choices, device)
    if device.type == "cuda" and choices.compile.value:
        _plan_memory(config, model, rows.prepared, device, say)
    trainer = Trainer(
        config,
        model,
        TrainStep(
            model,
            _optimizer(config.optimizer, model, config.train.seed),
            max_norm=config.optimizer.max_grad_norm,
            scaling=choices.loss_scaling.value,
        ),
        rows,
        Checkpoints(output / "checkpoints", keep=config.train.save_total_limit),
        records,
        trained=config.trained,
        peak=peak_flops(device, choices.dtype.value),
        say=say,
        show=show,
    )
    return Session(trainer, rows, choices, folder)


def _choices(table: ModelTable, device: torch.device) -> Choices:
    capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
    choices = choose(
        capability,
        installed(),
        dtype=table.dtype or None,
        attention=table.attention or None,
        compile=table.compiled,
    )
    if table.fp8 and not choices.fp8.value:
        raise ConfigError(f"model.fp8 is {table.fp8!r}; {choices.fp8.why}")
    return choices


def _folder(table: ModelTable) -> Path | None:
    """The local folder with tokenizer files, and weights unless they are random."""
    if table.path:
        return fetch(table.path, table.revision or None)
    if table.processor:
        return fetch(table.processor)
    return None if table.random.upper() in FAMILY else fetch(table.random)


def _model(config: Config, folder: Path | None, choices: Choices, device: torch.device) -> Qwen3VL:
    table = config.model
    dtype = DTYPES[choices.dtype.value]
    picked = kernels(choices)
    if table.path:
        assert folder is not None
        model = load(folder, dtype=dtype, device=device, kernels=picked)
    else:
        shape = _random_config(table)
        model = random_model(
            shape, seed=config.train.seed, dtype=dtype, device=device, kernels=picked
        )
    if model.config.vision.grid_side != POSITIONS_SIDE:
        raise InputError(
            f"the model's tower has {model.config.vision.positions} learned positions; rows are "
            f"made for {POSITIONS_SIDE**2}"
        )
    if config.lora.r:
        add_lora(model, config.lora.r, config.lora.alpha, seed=config.train.seed)
    else:
        set_trained(model, config.trained)
    model.recompute = Recompute(
        text_blocks=table.recompute_text_blocks, vision_blocks=table.recompute_vision_blocks
    )
    if table.fp8:
        use_fp8(model, table.fp8, table.fp8_scope)
    if choices.compile.value:
        compile_blocks(model, activation_budget=table.activation_budget)
    return model


def _plan_memory(
    config: Config,
    model: Qwen3VL,
    prepared: Prepared,
    device: torch.device,
    say: Callable[[str], None],
) -> None:
    """Recompute as many blocks as the largest row of the first epoch needs to fit."""
    row = largest_row(prepared)
    state_bytes = 4 if config.optimizer.states == "bfloat16" else 12
    room = int(torch.cuda.get_device_properties(device).total_memory * USABLE)
    chosen = fit(
        model,
        row,
        room,
        trained=config.trained,
        state_bytes=state_bytes,
        at_least=model.recompute,
    )
    every = Recompute(text_blocks=len(model.blocks), vision_blocks=len(model.visual.blocks))
    model.recompute = chosen or every
    planned = estimate(
        model,
        row,
        trained=config.trained,
        state_bytes=state_bytes,
        recompute=model.recompute,
    )
    say(
        f"memory        {size(planned.total)} planned of {size(room)}; recomputed: "
        f"{model.recompute.text_blocks} text, {model.recompute.vision_blocks} vision blocks"
    )


def largest_row(prepared: Prepared) -> RowShape:
    """Most vision rows and labels that a row of the first epoch has."""
    samples, rows = prepared.samples, prepared.plan.epoch(0).rows
    bucket = prepared.config.patch_bucket
    patches = int(rows.sums(samples.patches).max(initial=0))
    return RowShape(
        tokens=prepared.config.tokens_per_row,
        vision_rows=-(-patches // bucket) * bucket,
        scored=int(rows.sums(samples.scored).max(initial=0)),
    )


def _random_config(table: ModelTable) -> ModelConfig:
    if table.random.upper() in FAMILY:
        return ModelConfig.named(table.random)
    return ModelConfig.from_folder(Path(table.random))


def _optimizer(table: OptimizerTable, model: Qwen3VL, seed: int) -> AdamW:
    whole = table.states == "float32"
    dtype = next(model.parameters()).dtype
    return AdamW(
        decay_groups(model.named_parameters(), table.weight_decay),
        lr=table.learning_rate,
        betas=(table.adam_beta1, table.adam_beta2),
        eps=table.adam_epsilon,
        # float16 has no room for stochastic rounding: its updates vanish below 6e-8
        masters=whole or dtype is torch.float16,
        state_dtype=torch.float32 if whole else torch.bfloat16,
        seed=seed,
    )


def _rows(
    config: Config,
    folder: Path | None,
    device: torch.device,
    dtype: torch.dtype,
    run_dir: Path,
    scanned: Scanned,
) -> LoadedRows:
    if folder is None:
        raise ConfigError(
            f"model.random is {config.model.random!r}, which has no tokenizer",
            hint="set model.processor to a folder or hub id with Qwen3-VL's tokenizer",
        )
    data = config.data
    if config.train.gradient_accumulation_steps:
        data = replace(data, rows_per_step=config.train.gradient_accumulation_steps)
    prepared = prepare(data, folder, quarantine=run_dir / "quarantine.jsonl", progress=scanned)
    evaluated = _evaluated(config.eval, folder, scanned)
    epochs = config.train.num_train_epochs
    return LoadedRows(
        prepared, device, epochs=epochs, evaluated=evaluated, run_dir=run_dir, dtype=dtype
    )


def _evaluated(data: DataConfig, folder: Path, scanned: Scanned) -> Prepared | None:
    if not data.sources:
        return None
    return one_row_at_a_time(prepare(data, folder, progress=scanned))
