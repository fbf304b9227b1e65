"""The configuration of ``brim train``: frozen, checked once, with the names trainers know."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brim.data.config import DataConfig
from brim.errors import ConfigError
from brim.model.attention import BACKENDS
from brim.model.config import FAMILY
from brim.model.flops import Trained
from brim.model.kernels import ACTIVATION_BUDGET
from brim.model.memory import STATES
from brim.model.parts import PARTS
from brim.model.precision import RECIPES, SCOPES
from brim.train import tables
from brim.train.trackers import TRACKERS

SCHEDULES = ("cosine", "linear", "constant")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelTable:
    """Which model, and how it runs.  Empty texts leave the choice to the device."""

    path: str = ""
    """A folder, or a hub id such as Qwen/Qwen3-VL-4B-Instruct."""
    revision: str = ""
    """Commit of a hub id."""
    random: str = ""
    """Instead of a path: random weights of 2B, 4B, 8B, 32B or of a folder's config.json."""
    processor: str = ""
    """Folder or hub id of the tokenizer, where model.random has none beside it."""
    dtype: str = ""
    """bfloat16, float16 or float32."""
    attention: str = ""
    """fa4, varlen, efficient or math."""
    compile: str = ""
    """true or false."""
    fp8: str = ""
    """tensorwise, rowwise or rowwise_with_gw_hp: linear layers of the blocks in FP8."""
    fp8_scope: str = "text"
    """text, or both for the tower's blocks too."""
    freeze: tuple[str, ...] = ()
    """Parts that are not trained: text, embedding, head, merger, tower."""
    activation_budget: float = ACTIVATION_BUDGET
    """Share of a compiled block's activations that is kept; 1 keeps all, below 0.8 the attention
    runs twice."""
    recompute_text_blocks: int = 0
    """Text blocks that forget their activations; more are added when memory runs out."""
    recompute_vision_blocks: int = 0
    offload_activations: bool = False
    """Inputs of recomputed text blocks wait in host memory; it is also the last resort when memory
    runs out."""

    def __post_init__(self) -> None:
        if bool(self.path) == bool(self.random):
            raise ConfigError("give either model.path or model.random")
        _one_of("model.dtype", self.dtype, ("", "bfloat16", "float16", "float32"))
        _one_of("model.attention", self.attention, ("", *BACKENDS))
        _one_of("model.compile", self.compile, ("", "true", "false"))
        _one_of("model.fp8", self.fp8, ("", *RECIPES))
        _one_of("model.fp8_scope", self.fp8_scope, tuple(SCOPES))
        if not 0 < self.activation_budget <= 1:
            raise ConfigError("model.activation_budget is a share: above 0, at most 1")
        for part in self.freeze:
            _one_of("model.freeze", part, tuple(PARTS))
        if set(self.freeze) == set(PARTS):
            raise ConfigError("model.freeze names every part: nothing is left to train")

    @property
    def compiled(self) -> bool | None:
        return {"": None, "true": True, "false": False}[self.compile]


@dataclass(frozen=True, kw_only=True, slots=True)
class LoraTable:
    """Adapters on every linear layer of the text blocks (of a mixture of experts, those of the
    attention); all else is frozen then."""

    r: int = 0
    """Rank; 0: no adapters."""
    lora_alpha: float = 0.0
    """The adapters' part is scaled by lora_alpha / r; 0: twice the rank."""

    def __post_init__(self) -> None:
        _at_least(0, lora=self, names=("r", "lora_alpha"))

    @property
    def alpha(self) -> float:
        return self.lora_alpha or 2.0 * self.r


@dataclass(frozen=True, kw_only=True, slots=True)
class OptimizerTable:
    """AdamW, its schedule and its states."""

    learning_rate: float = 1e-5
    lr_scheduler_type: str = "cosine"
    """cosine or linear (to min_lr_ratio), or constant."""
    warmup_steps: int = 0
    warmup_ratio: float = 0.03
    """Share of all steps; used when warmup_steps is 0."""
    min_lr_ratio: float = 0.0
    weight_decay: float = 0.0
    """Not applied to norms and biases."""
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_epsilon: float = 1e-8
    max_grad_norm: float = 1.0
    """0: no clipping."""
    states: str = ""
    """float32 with masters of half-precision weights; bfloat16 or 8bit with stochastic rounding and
    no masters.  Empty: those that fit."""

    def __post_init__(self) -> None:
        _one_of("optimizer.lr_scheduler_type", self.lr_scheduler_type, SCHEDULES)
        _one_of("optimizer.states", self.states, ("", *STATES))
        _at_least(0, optimizer=self, names=("learning_rate", "weight_decay", "max_grad_norm"))
        _at_least(0, optimizer=self, names=("warmup_steps", "warmup_ratio", "min_lr_ratio"))
        for name in ("adam_beta1", "adam_beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"optimizer.{name} must be at least 0 and below 1")


@dataclass(frozen=True, kw_only=True, slots=True)
class ParallelTable:
    """How several ranks share a run; without torchrun nothing here matters."""

    data: str = "auto"
    """ddp: a copy of the model on every rank.  fsdp: one copy over all ranks.  hsdp: one copy over
    the ranks of a host.  auto: what sends least among those that fit."""
    shard_ranks: int = 0
    """hsdp: ranks that share a copy; 0: those of a host."""
    reduce_dtype: str = "float32"
    """fsdp, hsdp: gradients are summed in float32 or bfloat16."""
    reshard_after_forward: str = "auto"
    """fsdp, hsdp: true gathers weights for every pass, false keeps them through a step; auto: by
    memory."""
    gradient_sync: str = "auto"
    """step: gradients are reduced once a step.  row: after every row, which keeps less when
    sharded.  auto: step where memory allows."""
    prefetch: int = 1
    """fsdp, hsdp: blocks whose weights are gathered ahead in the forward pass."""
    ddp_bucket_cap_mb: int = 25
    """ddp: gradients that are reduced as one."""
    ddp_static_graph: bool = True
    """ddp: the same parameters take part in every step, which brim's plan sees to."""

    def __post_init__(self) -> None:
        _one_of("parallel.data", self.data, ("auto", "ddp", "fsdp", "hsdp"))
        _one_of("parallel.reduce_dtype", self.reduce_dtype, ("float32", "bfloat16"))
        _one_of("parallel.reshard_after_forward", self.reshard_after_forward,
                ("auto", "true", "false"))  # fmt: skip
        _one_of("parallel.gradient_sync", self.gradient_sync, ("auto", "step", "row"))
        _at_least(0, parallel=self, names=("shard_ranks", "prefetch"))
        _at_least(1, parallel=self, names=("ddp_bucket_cap_mb",))


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainTable:
    """How long, and what is written when."""

    num_train_epochs: int = 1
    max_steps: int = 0
    """Optimizer steps; 0: as many as the epochs have."""
    gradient_accumulation_steps: int = 0
    """Rows of one step on each rank; 0: data.rows_per_step over the ranks."""
    seed: int = 0
    """Of stochastic rounding and random weights; data.seed orders the samples."""
    logging_steps: int = 1
    save_steps: int = 500
    """0: only at the end."""
    save_at_end: bool = True
    """Write a checkpoint and the trained model when the run has finished."""
    save_total_limit: int = 2
    """Checkpoints kept; at least two."""
    eval_steps: int = 0
    """0: no evaluation while training."""
    report_to: tuple[str, ...] = ()
    """tensorboard, wandb, mlflow: beside metrics.jsonl, which is always written."""
    max_bad_steps: int = 5
    """Updates skipped in a row (loss or gradient not finite) before going back a checkpoint."""
    hang_timeout_s: float = 1800.0
    """Without a step for so long a run counts as hung: its stacks are written and it is ended.
    0: never."""
    resume: bool = True
    """Continue from the newest valid checkpoint in output_dir."""

    def __post_init__(self) -> None:
        names = ("max_steps", "gradient_accumulation_steps", "save_steps", "eval_steps", "seed",
                 "hang_timeout_s")  # fmt: skip
        _at_least(0, train=self, names=names)
        _at_least(1, train=self, names=("num_train_epochs", "logging_steps", "max_bad_steps"))
        _at_least(2, train=self, names=("save_total_limit",))
        for name in self.report_to:
            _one_of("train.report_to", name, tuple(TRACKERS))


@dataclass(frozen=True, kw_only=True, slots=True)
class Config:
    """One training run."""

    output_dir: str = "runs/train"
    """Checkpoints, the final model and the run's records."""
    model: ModelTable = field(default_factory=lambda: ModelTable(random="4B"))
    lora: LoraTable = field(default_factory=LoraTable)
    optimizer: OptimizerTable = field(default_factory=OptimizerTable)
    train: TrainTable = field(default_factory=TrainTable)
    parallel: ParallelTable = field(default_factory=ParallelTable)
    data: DataConfig = field(default_factory=DataConfig)
    eval: DataConfig = field(default_factory=DataConfig)
    """Sources to evaluate on; its other fields are those of data unless given."""

    def __post_init__(self) -> None:
        if self.lora.r and self.model.fp8:
            raise ConfigError("lora.r and model.fp8 do not go together", hint="drop one of them")
        if self.lora.r and self.model.freeze:
            raise ConfigError(
                "lora.r freezes every part already", hint="drop model.freeze, or lora.r"
            )

    @property
    def trained(self) -> Trained:
        """The parts that learn."""
        if self.lora.r:
            return Trained(**dict.fromkeys(PARTS, False), lora_rank=self.lora.r)
        return Trained(**{part: part not in self.model.freeze for part in PARTS})


def load(path: Path, settings: Sequence[str] = ()) -> Config:
    """The configuration in ``path`` with ``settings`` (``a.b=value``) applied."""
    table = tables.read(path)
    tables.override(table, settings)
    return of_table(table, path.parent)


def of_table(table: Mapping[str, Any], folder: Path) -> Config:
    """From parsed TOML; relative paths of the data start at ``folder``."""
    values = dict(table)
    data, evaluation = (_table(name, values.pop(name, {})) for name in ("data", "eval"))
    if "model" not in values:
        raise ConfigError(
            "the table [model] is missing", hint='write [model] path = "FOLDER or hub id"'
        )
    plain = tables.build(Config, values)
    if plain.train.gradient_accumulation_steps and "rows_per_step" in data:
        raise ConfigError(
            "data.rows_per_step and train.gradient_accumulation_steps both say how many rows a "
            "step has",
            hint="give one of them",
        )
    rows = DataConfig.of_table(data, folder)
    shared = {k: v for k, v in data.items() if k != "sources"}
    return Config(
        output_dir=plain.output_dir,
        model=_anchored(plain.model, folder),
        lora=plain.lora,
        optimizer=plain.optimizer,
        train=plain.train,
        parallel=plain.parallel,
        data=rows,
        eval=DataConfig.of_table({**shared, **evaluation}, folder),
    )


def _table(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {value!r}; it is a table")
    return dict(value)


def _anchored(model: ModelTable, folder: Path) -> ModelTable:
    """Relative model folders start beside the configuration file, if they exist there."""

    def beside(name: str) -> str:
        return str(folder / name) if name and (folder / name).is_dir() else name

    random = model.random if model.random.upper() in FAMILY else beside(model.random)
    return replace(model, path=beside(model.path), random=random, processor=beside(model.processor))


def _one_of(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        names = ", ".join(k for k in known if k)
        raise ConfigError(f"{name} is {value!r}", hint=f"one of {names}")


def _at_least(bound: int, *, names: Sequence[str], **table: Any) -> None:
    ((prefix, values),) = table.items()
    for name in names:
        if getattr(values, name) < bound:
            value = getattr(values, name)
            raise ConfigError(f"{prefix}.{name} is {value}; it must be {bound} or more")
