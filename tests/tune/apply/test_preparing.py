"""The way each knob goes: an argument where the framework takes one, else a hook or a variable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brim.errors import UsageError
from brim.tune.apply import Alternate, Prepared, prepare
from brim.tune.knobs import KNOBS, Settings

HF = "from transformers import HfArgumentParser, TrainingArguments\nHfArgumentParser(())"


def _prepare(command: str, settings: Settings, cwd: Path, **more: Any) -> Prepared:
    return prepare(command.split(), settings, cwd, **{"env": {}, **more})


def _hooked(prepared: Prepared) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(prepared.env["BRIM_APPLY"])["settings"]
    return found


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "hf.py").write_text(HF)
    (tmp_path / "plain.py").write_text("import torch")
    (tmp_path / "sft.yaml").write_text(
        "per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\noptim: adamw_torch\n"
    )
    return tmp_path


def test_a_plain_script_is_changed_by_hooks_alone(here: Path) -> None:
    settings: Settings = {"loader.num_workers": 8, "recompute": "none", "liger": True}
    found = _prepare("python plain.py --x 1", settings, here)
    assert found.command == ["python", "plain.py", "--x", "1"]
    assert _hooked(found) == settings
    assert set(found.how.values()) == {"hook"}


def test_no_settings_still_tell_the_hooks_that_there_are_none(here: Path) -> None:
    """The first run of a job counts like the others: same hooks, same records."""
    assert dict(_prepare("python plain.py", {}, here).env) == {"BRIM_APPLY": '{"settings": {}}'}


@pytest.mark.parametrize(
    ("command", "settings", "added"),
    [
        ("python hf.py", {"loader.num_workers": 8}, "--dataloader_num_workers 8"),
        ("python hf.py", {"loader.pin_memory": False}, "--dataloader_pin_memory false"),
        ("python hf.py", {"precision.tf32": "high"}, "--tf32 true"),
        ("python hf.py", {"precision.autocast": "bfloat16"}, "--bf16 true"),
        ("python hf.py", {"liger": True}, "--use_liger_kernel true"),
        ("python hf.py", {"recompute": "all"}, "--gradient_checkpointing true"),
        ("python hf.py", {"ddp.bucket_cap_mb": 50}, "--ddp_bucket_cap_mb 50"),
        ("swift sft", {"attention.implementation": "flash_attention_2"}, "--attn_impl flash_attn"),
        ("swift sft", {"recompute": "none"}, "--gradient_checkpointing false"),
        ("llamafactory-cli train sft.yaml", {"recompute": "none"},
         "disable_gradient_checkpointing=true"),
        ("llamafactory-cli train sft.yaml", {"attention.implementation": "sdpa"},
         "flash_attn=sdpa"),
        ("llamafactory-cli train sft.yaml", {"liger": True}, "enable_liger_kernel=true"),
        ("llamafactory-cli train sft.yaml", {"optimizer.fused": True}, "optim=adamw_torch_fused"),
        ("llamafactory-cli train sft.yaml", {"batch.micro": 4},
         "per_device_train_batch_size=4 gradient_accumulation_steps=4"),
    ],
)  # fmt: skip
def test_a_framework_gets_its_own_argument_and_the_hooks_none(
    command: str, settings: Settings, added: str, here: Path
) -> None:
    found = _prepare(command, settings, here)
    assert found.command == [*command.split(), *added.split()]
    assert _hooked(found) == {}
    assert dict(found.how) == dict.fromkeys(settings, "argument")


@pytest.mark.parametrize(
    ("command", "settings"),
    [
        # checkpointing that no argument asks for comes from code
        ("python hf.py", {"recompute": "none"}),
        ("swift sft", {"recompute": "half"}),
        # refused without workers
        ("python hf.py", {"loader.persistent_workers": True}),
        ("python hf.py --dataloader_num_workers 0", {"loader.prefetch_factor": 4}),
        # the product is not known, or no multiple
        ("python hf.py", {"batch.micro": 4}),
        ("swift sft --per_device_train_batch_size 2", {"batch.micro": 4}),
        ("llamafactory-cli train sft.yaml", {"batch.micro": 3}),
        # another optimizer
        ("python hf.py --optim adafactor", {"optimizer.fused": True}),
        # a data module takes what it was written to take
        ("python lightning.py fit", {"loader.num_workers": 4}),
        # the job's own way to say it
        ("python hf.py --accelerator_config a.json", {"transfer.non_blocking": True}),
    ],
)
def test_where_the_argument_would_not_do_the_hook_does(
    command: str, settings: Settings, here: Path
) -> None:
    (here / "lightning.py").write_text("LightningCLI(Model)")
    found = _prepare(command, settings, here)
    assert found.command == command.split()
    assert _hooked(found) == settings


@pytest.mark.parametrize(
    ("command", "settings", "wanted"),
    [
        ("python hf.py --gradient_checkpointing --bf16 true", {"recompute": "none"},
         "python hf.py --gradient_checkpointing false --bf16 true"),
        ("python hf.py --dataloader-num-workers=4", {"loader.num_workers": 8},
         "python hf.py --dataloader_num_workers 8"),
        ("python hf.py --torch_empty_cache_steps 1 --x 1", {"memory.flush": 0},
         "python hf.py --x 1"),
        ("python hf.py --torch_empty_cache_steps 1", {"memory.flush": 50},
         "python hf.py --torch_empty_cache_steps 50"),
        ("python hf.py --per_device_train_batch_size 2 --gradient_accumulation_steps 8",
         {"batch.micro": 8},
         "python hf.py --per_device_train_batch_size 8 --gradient_accumulation_steps 2"),
        ("python hf.py --dataloader_num_workers 2", {"loader.prefetch_factor": 4},
         "python hf.py --dataloader_num_workers 2 --dataloader_prefetch_factor 4"),
    ],
)  # fmt: skip
def test_what_the_command_says_already_is_replaced(
    command: str, settings: Settings, wanted: str, here: Path
) -> None:
    assert _prepare(command, settings, here).command == wanted.split()


def test_workers_that_come_with_a_setting_count_for_the_others(here: Path) -> None:
    settings: Settings = {"loader.persistent_workers": True, "loader.num_workers": 4}
    assert set(_prepare("python hf.py", settings, here).how.values()) == {"argument"}


@pytest.mark.parametrize(
    ("settings", "env", "added"),
    [
        ({"nccl.algo": "Ring"}, {}, {"NCCL_ALGO": "Ring"}),
        ({"nccl.nchannels": 16}, {}, {"NCCL_MIN_NCHANNELS": "16"}),
        ({"allocator.expandable_segments": True}, {},
         {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        ({"allocator.expandable_segments": True},
         {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:False"},
         {"PYTORCH_ALLOC_CONF": "max_split_size_mb:64,expandable_segments:True"}),
        ({"debug": False}, {"CUDA_LAUNCH_BLOCKING": "1", "NCCL_DEBUG": "WARN"},
         {"CUDA_LAUNCH_BLOCKING": "0"}),
        ({"debug": False}, {"TORCH_DISTRIBUTED_DEBUG": "DETAIL", "PYTHONTRACEMALLOC": "25"},
         {"TORCH_DISTRIBUTED_DEBUG": "OFF", "PYTHONTRACEMALLOC": "0"}),
        ({"debug": False}, {}, {}),
    ],
)  # fmt: skip
def test_variables_are_set_only_where_they_differ_and_keep_other_options(
    settings: Settings, env: dict[str, str], added: dict[str, str], here: Path
) -> None:
    found = dict(_prepare("python plain.py", settings, here, env=env).env)
    assert json.loads(found.pop("BRIM_APPLY"))["settings"] == settings  # the hooks say if it took
    assert found == added


def test_a_switched_knob_is_a_hooks_even_where_there_is_an_argument(here: Path) -> None:
    turned = Alternate(settings={"precision.tf32": "high"}, every=5)
    kept: Settings = {"liger": True, "precision.tf32": "medium"}
    found = _prepare("python hf.py", kept, here, alternate=turned)
    order = json.loads(found.env["BRIM_APPLY"])
    assert order["alternate"] == {"every": 5, "settings": {"precision.tf32": "high"}}
    assert found.how["precision.tf32"] == "hook"
    assert found.how["liger"] == "argument"


@pytest.mark.parametrize("id", [id for id, knob in KNOBS.items() if not knob.live])
def test_a_knob_that_is_not_live_cannot_alternate(id: str) -> None:
    knob = KNOBS[id]
    value = True if knob.kind == "flag" else knob.low if knob.kind == "count" else knob.choices[0]
    with pytest.raises(ValueError, match="cannot be switched"):
        Alternate(settings={id: value})


def test_unknown_knobs_and_values_are_the_users_mistake(here: Path) -> None:
    with pytest.raises(UsageError, match="no such knob"):
        _prepare("python plain.py", {"loader.workers": 3}, here)
    with pytest.raises(UsageError, match="one of"):
        _prepare("python plain.py", {"recompute": "some"}, here)
