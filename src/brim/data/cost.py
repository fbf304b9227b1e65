"""What a sample costs a device, in floating-point operations: the measure by which ranks balance.

Forward only (backward is twice that, for all terms alike), from a model's ``config.json``:

===============  ==========================================================================
token            2 · parameters of the decoder layers (of their experts, those that it takes)
token²           causal attention: 2 · layers · heads · head_dim
scored token     2 · vocabulary · hidden
patch            2 · parameters of the tower's blocks and patch embedding, and a quarter of the
                 mergers' (four patches make a visual token)
patch²           full attention inside a frame: 4 · depth · hidden
===============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cost:
    """FLOPs of the forward pass per unit; the defaults are Qwen3-VL-4B's."""

    token: float = 7.267e9
    token_square: float = 294_912.0
    scored: float = 0.778e9
    patch: float = 607.1e6 + 54.5e6
    patch_square: float = 98_304.0

    def of(
        self,
        tokens: NDArray[np.int64],
        token_squares: NDArray[np.int64],
        scored: NDArray[np.int64],
        patches: NDArray[np.int64],
        patch_squares: NDArray[np.int64],
    ) -> Numbers:
        """FLOPs of samples or rows, from their sums."""
        total: Numbers = (
            self.token * tokens
            + self.token_square * token_squares
            + self.scored * scored
            + self.patch * patches
            + self.patch_square * patch_squares
        )
        return total

    @classmethod
    def of_model(cls, config: Mapping[str, Any]) -> Cost:
        """From a Qwen3-VL's ``config.json``, dense or with experts."""
        text, vision = config["text_config"], config["vision_config"]
        hidden, layers = text["hidden_size"], text["num_hidden_layers"]
        head_dim = text.get("head_dim", 128)
        queries = text["num_attention_heads"] * head_dim
        keys = text["num_key_value_heads"] * head_dim
        layer = hidden * (2 * queries + 2 * keys + _inner(text))
        width, depth = vision["hidden_size"], vision["depth"]
        block = 4 * width**2 + 2 * width * vision["intermediate_size"]
        patch_values = 3 * vision.get("temporal_patch_size", 2) * vision["patch_size"] ** 2
        merged = width * vision["spatial_merge_size"] ** 2
        mergers = 1 + len(vision.get("deepstack_visual_indexes", ()))
        merger = 2 * (merged**2 + merged * hidden) * mergers
        return cls(
            token=2.0 * layers * layer,
            token_square=2.0 * layers * queries,
            scored=2.0 * text["vocab_size"] * hidden,
            patch=2.0 * (depth * block + patch_values * width)
            + merger / vision["spatial_merge_size"] ** 2,
            patch_square=4.0 * depth * width,
        )


def _inner(text: Mapping[str, Any]) -> int:
    """Parameters of an MLP for each of its inputs, as far as one token uses them."""
    experts = text.get("num_experts") or text.get("num_local_experts") or 0
    if not experts:
        return 3 * int(text["intermediate_size"])
    router = int(experts)
    return 3 * int(text["num_experts_per_tok"] * text["moe_intermediate_size"]) + router
