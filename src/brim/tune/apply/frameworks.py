"""Knobs as the frameworks' own arguments: what to set to what, when the framework takes it.

Names are those of transformers 4.40 to 5, ms-swift 3, LLaMA-Factory 0.9 and Lightning 2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from brim.tune.apply.command import Framework, Invocation, assigned, value_of
from brim.tune.apply.yaml import yaml_value
from brim.tune.knobs import Settings, Value

Arguments = dict[str, str | None]
"""Name → value as it is typed; None: to be taken away."""


@dataclass(frozen=True, slots=True)
class Known:
    """What the job's command and file say now."""

    invocation: Invocation
    config: str = ""
    """Text of the YAML file."""
    settings: Settings = field(default_factory=dict)
    """All that are about to hold."""

    def __call__(self, name: str) -> str | None:
        if self.invocation.config is None:
            return value_of(self.invocation.arguments, name)
        found = assigned(self.invocation.arguments, name)
        return found if found is not None else yaml_value(self.config, name)


Rule = Callable[[Value, Known], Arguments | None]
"""The arguments for a value; None where this framework has none for it, or not in this job."""


def arguments_for(id: str, value: Value, known: Known) -> Arguments | None:
    """None: the knob has no argument here, and is a hook's."""
    rule = _RULES[known.invocation.framework].get(id)
    return rule(value, known) if rule is not None else None


def typed(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _plain(name: str) -> Rule:
    return lambda value, known: {name: typed(value)}


def _with_workers(name: str) -> Rule:
    """Trainers and loaders refuse these without workers."""

    def rule(value: Value, known: Known) -> Arguments | None:
        workers = known.settings.get("loader.num_workers", known("dataloader_num_workers"))
        return {name: typed(value)} if workers not in (None, "0", 0) else None

    return rule


def _if_there(name: str) -> Rule:
    """Only where the job sets it: else it comes from code, which an argument may not change."""
    return lambda value, known: {name: typed(value)} if known(name) is not None else None


def _choice(name: str, words: Mapping[Value, str]) -> Rule:
    return lambda value, known: {name: words[value]} if value in words else None


def _fused(value: Value, known: Known) -> Arguments | None:
    """The same optimizer, fused: others have no fused form."""
    plain, fused = "adamw_torch", "adamw_torch_fused"
    before, after = (plain, fused) if value else (fused, plain)
    return {"optim": after} if known("optim") == before else None


def _flush(value: Value, known: Known) -> Arguments | None:
    if known("torch_empty_cache_steps") is None:
        return None  # the calls are in the code
    if value:
        return {"torch_empty_cache_steps": str(value)}
    return {"torch_empty_cache_steps": None}


def _micro(default_batch: int, default_steps: int | None) -> Rule:
    """Another micro-batch, as many samples per step.

    ``default_steps``: None where the framework derives it, and the product is not known.
    """

    def rule(value: Value, known: Known) -> Arguments | None:
        batch = known("per_device_train_batch_size")
        steps = known("gradient_accumulation_steps") or default_steps
        try:
            total = int(batch or default_batch) * int(steps)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None
        if batch is None and known.invocation.script is not None:
            return None  # the script may have a default of its own
        if total % int(value):
            return None
        return {
            "per_device_train_batch_size": str(value),
            "gradient_accumulation_steps": str(total // int(value)),
        }

    return rule


def batch_of(known: Known) -> tuple[int | None, int | None]:
    """(samples of a forward pass, forward passes of a step); None where the job does not tell."""
    default = {"hf-trainer": 1, "llama-factory": 1}.get(known.invocation.framework)
    steps = known("gradient_accumulation_steps") or default
    return _count(known("per_device_train_batch_size")), _count(steps)


def _count(text: str | int | None) -> int | None:
    try:
        return int(text)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None


def _hf_non_blocking(value: Value, known: Known) -> Arguments | None:
    if known("accelerator_config") is not None:
        return None
    return {"accelerator_config": f'{{"non_blocking": {typed(value)}}}'}


_AUTOCAST: Final = {"bfloat16": {"bf16": "true"}, "float16": {"fp16": "true"}}


def _autocast(value: Value, known: Known) -> Arguments | None:
    del known
    return dict(_AUTOCAST[str(value)])


def _lightning_loader(name: str) -> Rule:
    """A data module takes what it was written to take: only what the command names already."""
    return _if_there(f"data.{name}")


_LOADER: Final[dict[str, Rule]] = {
    "loader.num_workers": _plain("dataloader_num_workers"),
    "loader.prefetch_factor": _with_workers("dataloader_prefetch_factor"),
    "loader.pin_memory": _plain("dataloader_pin_memory"),
    "loader.persistent_workers": _with_workers("dataloader_persistent_workers"),
}
_COMMON: Final[dict[str, Rule]] = {
    **_LOADER,
    "optimizer.fused": _fused,
    "precision.tf32": lambda value, known: {"tf32": "true"},
    "precision.autocast": _autocast,
    "memory.flush": _flush,
    "ddp.bucket_cap_mb": _plain("ddp_bucket_cap_mb"),
}

_RULES: Final[Mapping[Framework, Mapping[str, Rule]]] = {
    "torch": {},
    "hf-trainer": {
        **_COMMON,
        "transfer.non_blocking": _hf_non_blocking,
        "liger": _plain("use_liger_kernel"),
        "attention.implementation": _if_there("attn_implementation"),
        "recompute": lambda value, known: (
            {"gradient_checkpointing": typed(value == "all")}
            if value == "all" or (value == "none" and known("gradient_checkpointing") is not None)
            else None
        ),
        "batch.micro": _micro(8, 1),
    },
    "ms-swift": {
        **_COMMON,
        "liger": _plain("use_liger_kernel"),
        "attention.implementation": _choice(
            "attn_impl",
            {"sdpa": "sdpa", "flash_attention_2": "flash_attn", "flex_attention": "flex_attention"},
        ),
        "recompute": _choice("gradient_checkpointing", {"none": "false", "all": "true"}),
        "batch.micro": _micro(1, None),
    },
    "llama-factory": {
        **_COMMON,
        "liger": _plain("enable_liger_kernel"),
        "attention.implementation": _choice(
            "flash_attn", {"sdpa": "sdpa", "flash_attention_2": "fa2", "flash_attention_3": "fa3"}
        ),
        "recompute": _choice("disable_gradient_checkpointing", {"none": "true", "all": "false"}),
        "batch.micro": _micro(8, 1),
    },
    "lightning": {
        "loader.num_workers": _lightning_loader("num_workers"),
        "loader.prefetch_factor": _lightning_loader("prefetch_factor"),
        "loader.pin_memory": _lightning_loader("pin_memory"),
        "loader.persistent_workers": _lightning_loader("persistent_workers"),
        "cudnn.benchmark": _plain("trainer.benchmark"),
        "precision.autocast": _choice(
            "trainer.precision", {"bfloat16": "bf16-mixed", "float16": "16-mixed"}
        ),
        "debug": _if_there("trainer.detect_anomaly"),
    },
}

_OWN_FLAGS: Final[dict[str, str]] = {
    "loader.num_workers": r"(?:num[-_])?workers|dataloader[-_]num[-_]workers",
    "loader.prefetch_factor": r"prefetch[-_]factor",
}


def own_flag(id: str, source: str) -> str | None:
    """The flag that a script's own ``argparse`` has for a knob, told by its name; or None."""
    pattern = _OWN_FLAGS.get(id)
    if pattern is None:
        return None
    found = re.search(rf"""add_argument\(\s*["']--({pattern})["']""", source)
    return found[1] if found else None
