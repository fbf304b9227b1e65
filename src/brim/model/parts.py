"""The parts of the model that a run trains or freezes, by parameter name."""

from __future__ import annotations

from brim.model.flops import Trained
from brim.model.qwen3vl import Qwen3VL

PARTS = {
    "text": ("blocks.", "norm."),
    "embedding": ("embedding.",),
    "head": ("head.",),
    "merger": ("visual.merger.", "visual.deepstack."),
    "tower": ("visual.blocks.", "visual.patch_embedding.", "visual.positions."),
}


def part_of(parameter: str) -> str:
    """The part that a parameter belongs to."""
    return next(part for part, prefixes in PARTS.items() if parameter.startswith(prefixes))


def set_trained(model: Qwen3VL, trained: Trained) -> None:
    """Let gradients reach exactly the parts in ``trained``."""
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(getattr(trained, part_of(name)))
