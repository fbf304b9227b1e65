"""The arguments that brim types are known to transformers, and mean what they should."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from transformers import HfArgumentParser, TrainingArguments

from brim.tune.apply.command import Invocation, read_command
from brim.tune.apply.frameworks import Arguments, Known, arguments_for, batch_of, own_flag
from brim.tune.apply.preparing import with_arguments
from brim.tune.knobs import KNOBS, Settings, Value

GIVEN = (
    "python", "train.py", "--output_dir", "out", "--gradient_checkpointing", "--optim",
    "adamw_torch", "--torch_empty_cache_steps", "1", "--per_device_train_batch_size", "2",
    "--gradient_accumulation_steps", "8", "--dataloader_num_workers", "2", "--use_cpu",
)  # fmt: skip
JOB = Invocation(words=GIVEN, framework="hf-trainer", first=2, script=Path("train.py"))


def _values(id: str) -> tuple[Value, ...]:
    knob = KNOBS[id]
    if knob.kind == "flag":
        return True, False
    return (max(1, knob.low), 4) if knob.kind == "count" else knob.choices


def _parsed(settings: Settings) -> Any:
    """What transformers' own parser makes of the command under settings."""
    words, how = with_arguments(JOB, settings)
    assert set(how) == set(settings)
    (arguments,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(words[2:])
    return arguments


@pytest.mark.parametrize("framework", ["hf-trainer", "ms-swift"])
def test_every_argument_is_a_field_of_transformers_arguments(framework: Any) -> None:
    """ms-swift's arguments are those of transformers, and one of its own."""
    names = {f.name for f in fields(TrainingArguments)} | {"attn_impl"}
    job = Invocation(words=GIVEN, framework=framework, first=2)
    for id in KNOBS:
        for value in _values(id):
            found: Arguments | None = arguments_for(id, value, Known(job))
            assert set(found or ()) <= names, id


@pytest.mark.parametrize(
    ("settings", "field", "before", "after"),
    [
        ({"loader.num_workers": 6}, "dataloader_num_workers", 2, 6),
        ({"loader.prefetch_factor": 4}, "dataloader_prefetch_factor", None, 4),
        ({"loader.persistent_workers": True}, "dataloader_persistent_workers", False, True),
        ({"recompute": "none"}, "activation_checkpointing", True, False),
        ({"optimizer.fused": True}, "optim", "adamw_torch", "adamw_torch_fused"),
        ({"memory.flush": 0}, "torch_empty_cache_steps", 1, None),
        ({"memory.flush": 9}, "torch_empty_cache_steps", 1, 9),
        ({"liger": True}, "use_liger_kernel", False, True),
        ({"ddp.bucket_cap_mb": 50}, "ddp_bucket_cap_mb", None, 50),
        ({"precision.autocast": "bfloat16"}, "bf16", False, True),
        ({"batch.micro": 8}, "per_device_train_batch_size", 2, 8),
        ({"batch.micro": 8}, "gradient_accumulation_steps", 8, 2),
    ],
)
def test_transformers_reads_what_was_meant(
    settings: Settings, field: str, before: Any, after: Any
) -> None:
    assert (getattr(_parsed({}), field), getattr(_parsed(settings), field)) == (before, after)


def test_transformers_reads_copies_that_do_not_block() -> None:
    assert _parsed({}).accelerator_config.non_blocking is False
    assert _parsed({"transfer.non_blocking": True}).accelerator_config.non_blocking is True


@pytest.mark.parametrize(
    ("source", "flag"),
    [
        ('parser.add_argument("--num-workers", type=int)', "num-workers"),
        ("parser.add_argument(\n    '--workers', default=0)", "workers"),
        ('p.add_argument("--dataloader_num_workers")', "dataloader_num_workers"),
        ('p.add_argument("--workers-per-node")', None),
        ('p.add_argument("--max_workers")', None),
        ("num_workers = 4", None),
    ],
)
def test_a_scripts_own_flag_is_told_by_its_whole_name(source: str, flag: str | None) -> None:
    assert own_flag("loader.num_workers", source) == flag
    assert own_flag("recompute", source) is None


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("swift sft --per_device_train_batch_size 2", (2, None)),
        ("swift sft --per_device_train_batch_size 2 --gradient_accumulation_steps 4", (2, 4)),
        ("llamafactory-cli train --per_device_train_batch_size 3", (3, 1)),
        ("python no-such-file.py --per_device_train_batch_size 8", (8, None)),
        ("swift sft --per_device_train_batch_size many", (None, None)),
    ],
)
def test_the_batch_of_a_step_is_read_from_the_command_where_it_tells(
    words: str, found: tuple[int | None, int | None], tmp_path: Path
) -> None:
    assert batch_of(Known(read_command(words.split(), tmp_path))) == found
