from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3VLConfig, Qwen3VLMoeConfig

from brim.errors import InputError
from brim.model.config import FAMILY, ModelConfig
from brim.model.qwen3vl import Qwen3VL


@pytest.mark.parametrize(
    ("size", "parameters"),
    [
        ("2B", 2_127_532_032),
        ("4B", 4_437_815_808),
        ("8B", 8_767_123_696),
        ("32B", 33_357_390_064),
    ],
)
def test_the_family_has_the_published_parameter_counts(size: str, parameters: int) -> None:
    with torch.device("meta"):
        model = Qwen3VL(ModelConfig.named(size))
    assert sum(p.numel() for p in model.parameters()) == parameters


@pytest.mark.parametrize("size", FAMILY)
def test_a_written_config_says_the_same_to_transformers_and_to_us(size: str) -> None:
    config = ModelConfig.named(size)
    kind = Qwen3VLMoeConfig if config.text.experts else Qwen3VLConfig
    theirs = kind.from_dict(config.to_hf())
    assert theirs.text_config.rope_parameters["rope_theta"] == 5e6
    assert theirs.tie_word_embeddings == config.tied
    assert ModelConfig.from_hf(theirs.to_dict()) == config
    assert ModelConfig.from_hf(config.to_hf()) == config


def _raw(**changes: Any) -> dict[str, Any]:
    raw = ModelConfig.named("4B").to_hf()
    for path, value in changes.items():
        *parents, last = path.split("__")
        inner = raw
        for parent in parents:
            inner = inner[parent]
        inner[last] = value
    return raw


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "qwen3_vl_moe"}, "without text_config.num_experts"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"text_config__attention_bias": True}, "attention_bias is True"),
        ({"text_config__attention_dropout": 0.1}, "attention_dropout is 0.1"),
        ({"text_config__hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"text_config__rope_scaling__rope_type": "yarn"}, "rope_type is 'yarn'"),
        ({"text_config__rope_scaling__mrope_interleaved": False}, "mrope_interleaved is False"),
        ({"vision_config__hidden_act": "silu"}, "vision_config.hidden_act is 'silu'"),
        ({"vision_config__out_hidden_size": 7}, "out_hidden_size is 7"),
        ({"vision_config__deepstack_visual_indexes": [5, 24]}, r"is \[5, 24\], for 24 blocks"),
    ],
)
def test_what_would_change_the_arithmetic_is_refused_by_name(
    changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        ModelConfig.from_hf(_raw(**changes))


def test_old_files_with_rope_theta_beside_rope_scaling_are_read() -> None:
    assert ModelConfig.from_hf(_raw(text_config__rope_theta=1e6)).text.rope_theta == 1e6


def test_a_folder_without_or_with_a_broken_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config.json"):
        ModelConfig.from_folder(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(InputError, match="is not JSON"):
        ModelConfig.from_folder(tmp_path)


def test_an_unknown_size_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match="2B, 4B, 8B, 32B"):
        ModelConfig.named("7B")
