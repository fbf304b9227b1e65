"""What a Hugging Face ``config.json`` of the Qwen3-VL family says, checked field by field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brim.errors import InputError

_LM_SECTIONS = (24, 20, 20)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextConfig:
    """The language model."""

    vocab_size: int = 151_936
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int = 128
    """Not ``hidden_size / heads``: 4B has 2560 / 32 = 80, yet heads of 128."""
    norm_eps: float = 1e-6
    rope_theta: float = 5e6
    mrope_section: tuple[int, int, int] = _LM_SECTIONS
    """Rotary frequencies given to T, H and W, interleaved."""
    experts: int = 0
    """MLPs of a block of which each token takes ``experts_per_token``; 0: one MLP for all."""
    experts_per_token: int = 0
    expert_size: int = 0
    """Width of one expert, in place of ``intermediate_size``."""

    @property
    def qkv_size(self) -> int:
        """Width of the fused projection: queries, keys, values."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


@dataclass(frozen=True, kw_only=True, slots=True)
class VisionConfig:
    """The vision tower with its mergers."""

    depth: int
    hidden_size: int
    intermediate_size: int
    heads: int = 16
    out_hidden_size: int
    deepstack: tuple[int, ...]
    """Blocks after which the hidden states also go to the language model, by index from 0."""
    patch_size: int = 16
    temporal_patch_size: int = 2
    merge: int = 2
    channels: int = 3
    positions: int = 2304
    norm_eps: float = 1e-6
    rope_theta: float = 1e4

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def frame_values(self) -> int:
        """C: values of a patch in one frame."""
        return self.channels * self.patch_size**2

    @property
    def merged_size(self) -> int:
        """Width of a block of merge × merge patches."""
        return self.hidden_size * self.merge**2

    @property
    def grid_side(self) -> int:
        """Side of the square table of learned positions."""
        return round(self.positions**0.5)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig:
    text: TextConfig
    vision: VisionConfig
    tied: bool
    """The head is the embedding."""
    source: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)
    """The file as it was read; a saved folder repeats it."""

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any], where: str = "config.json") -> ModelConfig:
        """Read a ``config.json``, refusing with :class:`InputError` what this model is not."""
        kind = raw.get("model_type")
        if kind not in ("qwen3_vl", "qwen3_vl_moe"):
            raise InputError(
                f"{where}: model_type is {kind!r}", hint="brim trains qwen3_vl and qwen3_vl_moe"
            )
        text, vision = raw["text_config"], raw["vision_config"]
        _refuse_unsupported(text, vision, where)
        experts = text.get("num_experts") or text.get("num_local_experts")
        if kind == "qwen3_vl_moe" and not experts:
            raise InputError(f"{where}: a {kind} without text_config.num_experts")
        tied = raw.get("tie_word_embeddings", text.get("tie_word_embeddings", False))
        return cls(text=_text(text), vision=_vision(vision), tied=bool(tied), source=dict(raw))

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        path = folder / "config.json"
        try:
            raw = json.loads(path.read_bytes())
        except FileNotFoundError:
            raise InputError(
                f"{folder} has no config.json", hint="a model folder holds config.json and weights"
            ) from None
        except ValueError as error:
            raise InputError(f"{path} is not JSON: {error}") from None
        return cls.from_hf(raw, str(path))

    @classmethod
    def named(cls, size: str) -> ModelConfig:
        """The published configuration of ``2B``, ``4B``, ``8B``, ``32B`` or ``30B-A3B``."""
        try:
            text, tied, wide = FAMILY[size.upper()]
        except KeyError:
            raise InputError(f"no Qwen3-VL is called {size!r}", hint=", ".join(FAMILY)) from None
        tower = _TOWER_27 if wide else _TOWER_24
        vision = VisionConfig(**tower, out_hidden_size=text["hidden_size"])
        return cls(text=TextConfig(**text), vision=vision, tied=tied)

    def to_hf(self) -> dict[str, Any]:
        """A ``config.json`` that transformers opens."""
        return dict(self.source) if self.source else _to_hf(self)


_TOWER_24: dict[str, Any] = {
    "depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "deepstack": (5, 11, 17),
}  # fmt: skip
_TOWER_27: dict[str, Any] = {
    "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "deepstack": (8, 16, 24),
}  # fmt: skip


def _sizes(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    return {
        "hidden_size": hidden,
        "intermediate_size": inner,
        "layers": layers,
        "heads": heads,
        "kv_heads": 8,
    }


# name → (text, tied, the wide tower)
FAMILY: dict[str, tuple[dict[str, Any], bool, bool]] = {
    "2B": (_sizes(2048, 6144, 28, 16), True, False),
    "4B": (_sizes(2560, 9728, 36, 32), True, False),
    "8B": (_sizes(4096, 12288, 36, 32), False, True),
    "32B": (_sizes(5120, 25600, 64, 64), False, True),
    "30B-A3B": (
        _sizes(2048, 6144, 48, 32)
        | {"kv_heads": 4, "experts": 128, "experts_per_token": 8, "expert_size": 768},
        False,
        True,
    ),
}


def _text(raw: Mapping[str, Any]) -> TextConfig:
    rope = _rope(raw)
    heads = raw["num_attention_heads"]
    return TextConfig(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        layers=raw["num_hidden_layers"],
        heads=heads,
        kv_heads=raw.get("num_key_value_heads") or heads,
        head_dim=raw.get("head_dim") or raw["hidden_size"] // heads,
        norm_eps=raw.get("rms_norm_eps", 1e-6),
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 5e6),
        mrope_section=tuple(rope.get("mrope_section") or _LM_SECTIONS),
        # transformers 4 and the published files say num_experts
        experts=raw.get("num_experts") or raw.get("num_local_experts") or 0,
        experts_per_token=raw.get("num_experts_per_tok") or 0,
        expert_size=raw.get("moe_intermediate_size") or 0,
    )


def _vision(raw: Mapping[str, Any]) -> VisionConfig:
    return VisionConfig(
        depth=raw["depth"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"],
        heads=raw["num_heads"],
        out_hidden_size=raw["out_hidden_size"],
        deepstack=tuple(raw["deepstack_visual_indexes"]),
        patch_size=raw.get("patch_size", 16),
        temporal_patch_size=raw.get("temporal_patch_size", 2),
        merge=raw.get("spatial_merge_size", 2),
        channels=raw.get("in_channels", 3),
        positions=raw.get("num_position_embeddings", 2304),
        rope_theta=float((raw.get("rope_parameters") or {}).get("rope_theta", 1e4)),
    )


def _rope(text: Mapping[str, Any]) -> Mapping[str, Any]:
    """transformers 5 writes ``rope_parameters``, 4 wrote ``rope_scaling`` beside ``rope_theta``."""
    found: Mapping[str, Any] = text.get("rope_parameters") or text.get("rope_scaling") or {}
    return found


def _refuse_unsupported(text: Mapping[str, Any], vision: Mapping[str, Any], where: str) -> None:
    """Every field whose other values would change the arithmetic must have the known value."""
    rope = _rope(text)
    known: tuple[tuple[str, object, object], ...] = (
        ("text_config.hidden_act", text.get("hidden_act", "silu"), "silu"),
        ("text_config.attention_bias", bool(text.get("attention_bias")), False),
        ("text_config.attention_dropout", float(text.get("attention_dropout") or 0), 0.0),
        ("text_config rope_type", rope.get("rope_type", "default"), "default"),
        ("text_config mrope_interleaved", rope.get("mrope_interleaved", True), True),
        ("vision_config.hidden_act", vision.get("hidden_act"), "gelu_pytorch_tanh"),
        ("vision_config.spatial_merge_size", vision.get("spatial_merge_size", 2), 2),
        ("vision_config.temporal_patch_size", vision.get("temporal_patch_size", 2), 2),
        ("vision_config.out_hidden_size", vision["out_hidden_size"], text["hidden_size"]),
        ("text_config.decoder_sparse_step", text.get("decoder_sparse_step", 1), 1),
        ("text_config.mlp_only_layers", list(text.get("mlp_only_layers") or []), []),
        ("text_config.norm_topk_prob", text.get("norm_topk_prob", True), True),
        ("text_config.output_router_logits", text.get("output_router_logits", False), False),
    )
    for name, value, expected in known:
        if value != expected:
            raise InputError(
                f"{where}: {name} is {value!r}; this model knows {expected!r} only",
                hint="the published Qwen3-VL models all have it so",
            )
    layers, taps = text["num_hidden_layers"], vision["deepstack_visual_indexes"]
    if len(taps) > layers or any(not 0 <= tap < vision["depth"] for tap in taps):
        raise InputError(
            f"{where}: deepstack_visual_indexes is {list(taps)}, for {vision['depth']} blocks and "
            f"{layers} layers"
        )


def _to_hf(config: ModelConfig) -> dict[str, Any]:
    text, vision = config.text, config.vision
    kind = "Moe" if text.experts else ""
    family = "qwen3_vl_moe" if text.experts else "qwen3_vl"
    return {
        "architectures": [f"Qwen3VL{kind}ForConditionalGeneration"],
        "model_type": family,
        "image_token_id": 151_655,
        "video_token_id": 151_656,
        "vision_start_token_id": 151_652,
        "vision_end_token_id": 151_653,
        "tie_word_embeddings": config.tied,
        "text_config": {
            "model_type": f"{family}_text",
            "vocab_size": text.vocab_size,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_hidden_layers": text.layers,
            "num_attention_heads": text.heads,
            "num_key_value_heads": text.kv_heads,
            "head_dim": text.head_dim,
            "hidden_act": "silu",
            "attention_bias": False,
            "rms_norm_eps": text.norm_eps,
            "max_position_embeddings": 262_144,
            "rope_theta": text.rope_theta,
            "rope_scaling": {
                "rope_type": "default",
                "mrope_interleaved": True,
                "mrope_section": list(text.mrope_section),
            },
            "tie_word_embeddings": config.tied,
            **(_experts_to_hf(text) if text.experts else {}),
        },
        "vision_config": {
            "model_type": family,
            "depth": vision.depth,
            "hidden_size": vision.hidden_size,
            "intermediate_size": vision.intermediate_size,
            "num_heads": vision.heads,
            "out_hidden_size": vision.out_hidden_size,
            "deepstack_visual_indexes": list(vision.deepstack),
            "patch_size": vision.patch_size,
            "temporal_patch_size": vision.temporal_patch_size,
            "spatial_merge_size": vision.merge,
            "in_channels": vision.channels,
            "num_position_embeddings": vision.positions,
            "hidden_act": "gelu_pytorch_tanh",
        },
    }


def _experts_to_hf(text: TextConfig) -> dict[str, Any]:
    return {
        "num_experts": text.experts,
        "num_experts_per_tok": text.experts_per_token,
        "moe_intermediate_size": text.expert_size,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }
