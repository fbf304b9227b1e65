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
from brim.model.memory import RowShape
from brim.model.parts import set_trained
from brim.model.precision import use_fp8
from brim.model.qwen3vl import Qwen3VL, Recompute
from brim.model.weights import fetch, load, random_model
from brim.train.adamw import AdamW, decay_groups
from brim.train.checkpoint import Checkpoints
from brim.train.config import Config, ModelTable, OptimizerTable
from brim.train.fitting import options, pick, with_states
from brim.train.loop import Progress, Trainer
from brim.train.parallel.fit import share, world_of
from brim.train.parallel.ranks import Ranks
from brim.train.records import Records, peak_flops
from brim.train.source import LoadedRows, one_row_at_a_time
from brim.train.step import TrainStep
from brim.train.tables import flat

_STATE_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "8bit": torch.uint8}
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
    ranks: Ranks | None = None,
) -> Session:
    """Everything up to the first step.  Raises :class:`brim.errors.BrimError`.

    All ranks call it, and ``say`` hears on each what only the first should repeat.
    """
    if not config.data.sources:
        raise ConfigError("data.sources is empty: there is nothing to train on")
    ranks = ranks or Ranks(device=torch.device("cuda" if torch.cuda.is_available() else "cpu"))
    device = ranks.device
    tell = say if ranks.first else _silent
    choices = _decide(config.model, device, tell)
    folder = ranks.in_turn(lambda: _folder(config.model))
    output = Path(config.output_dir)
    records = Records(
        output / "records", command, device,
        report_to=config.train.report_to, settings=flat(config), say=tell, ranks=ranks,
    )  # fmt: skip
    dtype = DTYPES[choices.dtype.value]
    rows = ranks.in_turn(lambda: _rows(config, folder, ranks, dtype, records.folder, scanned))
    rows.prepared.plan.share(0, ranks.world)  # says so when the ranks cannot
    _same_data(ranks, rows)
    model = _model(config, folder, choices, device)
    if config.lora.r and model.config.text.experts:
        tell("lora          on the attention's layers only: experts have no adapters")
    if not rows.prepared.samples.patches.any() and ranks.world > 1:
        model.visual.requires_grad_(False)  # no row would bring it a gradient to reduce
    row = largest_row(rows.prepared)
    config = _states(config, model, row, rows.count, ranks, tell)
    parallel = share(config, model, row, rows.count, ranks, tell)
    trainer = Trainer(
        config,
        model,
        TrainStep(
            model,
            optimizer_of(config.optimizer, model, config.train.seed),
            max_norm=config.optimizer.max_grad_norm,
            scaling=choices.loss_scaling.value,
            parallel=parallel,
        ),
        rows,
        Checkpoints(output / "checkpoints", keep=config.train.save_total_limit, ranks=ranks),
        records,
        trained=config.trained,
        peak=peak_flops(device, choices.dtype.value),
        say=say,
        show=show,
    )
    return Session(trainer, rows, choices, folder)


def _decide(table: ModelTable, device: torch.device, tell: Callable[[str], None]) -> Choices:
    """Choose kernels and number types, say why, and set what torch keeps for the whole process."""
    choices = _choices(table, device)
    for name, reason in choices.reasons().items():
        tell(f"{name:13} {reason}")
    torch.backends.cuda.matmul.allow_tf32 = choices.tf32.value
    torch.backends.cudnn.allow_tf32 = choices.tf32.value
    return choices


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
        shape = shape_of(table)
        model = random_model(
            shape, seed=config.train.seed, dtype=dtype, device=device, kernels=picked
        )
    _check(model.config, device, choices)
    if config.lora.r:
        add_lora(model, config.lora.r, config.lora.alpha, seed=config.train.seed)
    else:
        set_trained(model, config.trained)
    model.recompute = Recompute(
        text_blocks=table.recompute_text_blocks,
        vision_blocks=table.recompute_vision_blocks,
        offload=table.offload_activations,
    )
    if table.fp8:
        use_fp8(model, table.fp8, table.fp8_scope)
    if choices.compile.value:
        compile_blocks(model, activation_budget=table.activation_budget)
    return model


def _check(config: ModelConfig, device: torch.device, choices: Choices) -> None:
    """Raises InputError for a model that rows, or this device, are not made for."""
    if config.vision.grid_side != POSITIONS_SIDE:
        raise InputError(
            f"the model's tower has {config.vision.positions} learned positions; rows are made for "
            f"{POSITIONS_SIDE**2}"
        )
    old = device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 0)
    if config.text.experts and old:
        raise InputError("a mixture of experts needs a GPU of capability 8.0: Ampere or newer")
    if config.text.experts and choices.compile.value and choices.dtype.value != "bfloat16":
        raise ConfigError(
            f"torch compiles a mixture of experts in bfloat16 only, and model.dtype is "
            f"{choices.dtype.value}",
            hint='set model.compile = "false"',
        )


def _states(
    config: Config,
    model: Qwen3VL,
    row: RowShape,
    rows: int,
    ranks: Ranks,
    say: Callable[[str], None],
) -> Config:
    """The configuration with the optimizer states that fit, where it leaves them open."""
    world = world_of(ranks, rows)
    picked = pick(options(config, model, row, world, together=ranks.together))
    say(f"{'states':13} {picked.value.states}: {picked.why}")
    return with_states(config, picked.value.states)


def _same_data(ranks: Ranks, rows: LoadedRows) -> None:
    """Raises InputError when the ranks see other data: their plans would disagree for ever."""
    prints = ranks.gather(rows.identity())
    odd = [rank for rank, found in enumerate(prints) if found != prints[0]]
    if odd:
        raise InputError(
            f"rank {odd[0]} of {len(prints)} sees other data than rank 0",
            hint="data.sources must hold the same files on every host",
        )


def _silent(_line: str) -> None:
    return


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


def shape_of(table: ModelTable) -> ModelConfig:
    """The sizes of a model whose weights are random, or lie in a folder."""
    if table.random.upper() in FAMILY:
        return ModelConfig.named(table.random)
    return ModelConfig.from_folder(Path(table.path or table.random))


def optimizer_of(table: OptimizerTable, model: Qwen3VL, seed: int) -> AdamW:
    """For a model as it is shared among the ranks; ``table.states`` is decided."""
    dtype = next(model.parameters()).dtype
    return AdamW(
        decay_groups(model.named_parameters(), table.weight_decay),
        lr=table.learning_rate,
        betas=(table.adam_beta1, table.adam_beta2),
        eps=table.adam_epsilon,
        # float16 has no room for stochastic rounding: its updates vanish below 6e-8
        masters=table.states == "float32" or dtype is torch.float16,
        state_dtype=_STATE_DTYPES[table.states],
        seed=seed,
    )


def _rows(
    config: Config,
    folder: Path | None,
    ranks: Ranks,
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
        rows = config.train.gradient_accumulation_steps * ranks.world
        data = replace(data, rows_per_step=rows)
    listed = run_dir / "quarantine.jsonl" if ranks.first else None
    prepared = prepare(data, folder, quarantine=listed, progress=scanned)
    return LoadedRows(
        prepared,
        ranks.device,
        epochs=config.train.num_train_epochs,
        evaluated=_evaluated(config.eval, folder, ranks.world, scanned),
        run_dir=run_dir,
        dtype=dtype,
        ranks=ranks,
        always_tower=config.parallel.gradient_sync == "row",
    )


def _evaluated(data: DataConfig, folder: Path, world: int, scanned: Scanned) -> Prepared | None:
    if not data.sources:
        return None
    return one_row_at_a_time(prepare(data, folder, progress=scanned), world)
