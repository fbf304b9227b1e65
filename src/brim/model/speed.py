"""How long a step will take on a GPU, before there is one: a roofline with measured efficiencies.

Matrix products and attention run at shares of the device's peak, everything else at a share of its
bandwidth, one after the other.  The shares were measured on an H200 (torch 2.11, CUDA 13), whose
power cap holds its clock at three quarters in such steps; the terms are those of
:mod:`brim.model.flops`, and recomputed blocks add their forward pass.  Within 5 % of what was
measured there for 4B, 8B and 8B in FP8; elsewhere a guess by the same shares.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.hardware.gpus import Gpu, peak_flops
from brim.model import flops
from brim.model.batch import RowCounts
from brim.model.config import ModelConfig
from brim.model.flops import Trained
from brim.model.qwen3vl import Recompute

PRODUCTS = 0.70
"""Of the dense peak, in matrix products of a training step's shapes: 0.72 in 4B's, 0.69 in 8B's."""
FP8_PRODUCTS = 0.52
"""Of the FP8 peak, without the casts."""
ATTENTION = {
    "fa4": (0.32, 0.42), "varlen": (0.18, 0.21), "efficient": (0.12, 0.14), "math": (0.04, 0.04),
}  # fmt: skip
"""Of the dense peak, forward and backward: causal with grouped heads of 128, and the tower's of 64.
A kernel's tile is a multiple of 32 wide, so heads of 72 leave a quarter of it empty."""
BANDWIDTH = 0.65
"""Of the memory's, in fused elementwise kernels, by the bytes that they need to move: what the
compiled blocks make twice to save memory is not among them."""
OPTIMIZER = 0.6
"""Of the memory's, in the optimizer with its norm."""
REST = 0.02
"""Of everything above: gaps, copies, rows, sorting."""
CASTS = 1.9
"""Elementwise bytes of a block with FP8 products, relative to one without."""
_STATE_TRAFFIC = {"float32": 28.0, "bfloat16": 14.0, "8bit": 10.0}
"""Bytes that an update reads and writes for a parameter: weight, gradient, states."""
_PASSES = 3
"""Elementwise work of a block forward and backward, in forward passes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """How a run computes; see :class:`brim.train.config.Config` for the names."""

    dtype: str = "bfloat16"
    attention: str = "fa4"
    fp8: bool = False
    """In the text blocks."""
    states: str = "bfloat16"
    recompute: Recompute = field(default_factory=Recompute)


@dataclass(frozen=True, kw_only=True, slots=True)
class Seconds:
    """A step's time by what it is spent on."""

    products: float
    attention: float
    elementwise: float
    optimizer: float
    again: float
    """Blocks that are computed twice."""

    @property
    def total(self) -> float:
        work = self.products + self.attention + self.elementwise + self.optimizer + self.again
        return (1 + REST) * work


def predict(
    config: ModelConfig,
    counts: RowCounts,
    gpu: Gpu,
    way: Way,
    *,
    trained: Trained | None = None,
    learnt: int,
) -> Seconds | None:
    """One optimizer step over rows with these counts; None where the GPU's peak is not known.

    ``learnt``: trained parameters.
    """
    peak = peak_flops(gpu, way.dtype)
    if peak is None:
        return None
    trained = trained or Trained()
    step = flops.step(config, counts, trained)
    once = flops.forward(config, counts, trained)
    text_rate, bytes_of_text = PRODUCTS * peak, text_bytes(config) * counts.tokens
    fp8_peak = peak_flops(gpu, "fp8") if way.fp8 else None
    if fp8_peak is not None:
        text_rate, bytes_of_text = FP8_PRODUCTS * fp8_peak, CASTS * bytes_of_text
    products = step.text_linear / text_rate + (
        step.head + step.lora + step.patch_embedding + step.tower_linear + step.mergers
    ) / (PRODUCTS * peak)
    text_share, tower_share = (share * peak for share in ATTENTION[way.attention])
    tower_share *= tile_use(config.vision.head_dim)
    attention = step.text_attention / text_share + step.tower_attention / tower_share
    bandwidth = gpu.bandwidth_gb_s * 1e9
    tower_passes = _PASSES if trained.tower else 1
    tower_bytes = vision_bytes(config) * counts.patches
    moved = _PASSES * bytes_of_text + tower_passes * tower_bytes
    share = _shares(config, way.recompute)
    text_again = once.text_linear / text_rate + once.text_attention / text_share
    tower_again = once.tower_linear / (PRODUCTS * peak) + once.tower_attention / tower_share
    return Seconds(
        products=products,
        attention=attention,
        elementwise=moved / (BANDWIDTH * bandwidth),
        optimizer=learnt * _STATE_TRAFFIC[way.states] / (OPTIMIZER * bandwidth),
        again=share[0] * text_again
        + share[1] * tower_again
        + (share[0] * bytes_of_text + share[1] * tower_bytes) / (BANDWIDTH * bandwidth),
    )


def tile_use(head_dim: int) -> float:
    """Share of an attention kernel's tile that heads of this size fill."""
    return head_dim / (-(-head_dim // 32) * 32)


def text_bytes(config: ModelConfig) -> float:
    """Elementwise bytes of one token in all text blocks, forward: two norms and two residuals,
    queries and keys turned in place, gate and up to one."""
    text = config.text
    heads = (text.heads + text.kv_heads) * text.head_dim
    mlp = 3 * text.intermediate_size
    if text.experts:  # copied to the experts and back
        mlp = text.experts_per_token * (3 * text.expert_size + 4 * text.hidden_size)
    return 2 * text.layers * (8 * text.hidden_size + 2 * heads + mlp)


def vision_bytes(config: ModelConfig) -> float:
    """The same of one patch in the tower's blocks, with biases and GELU."""
    vision = config.vision
    return 2 * vision.depth * (12 * vision.hidden_size + 2 * vision.intermediate_size)


def _shares(config: ModelConfig, recompute: Recompute) -> tuple[float, float]:
    text = min(recompute.text_blocks, config.text.layers) / config.text.layers
    return text, min(recompute.vision_blocks, config.vision.depth) / config.vision.depth
