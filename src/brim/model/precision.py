"""FP8 linear layers through torchao."""

from __future__ import annotations

from brim.errors import ConfigError, MissingExtra
from brim.model.qwen3vl import Qwen3VL

RECIPES = ("tensorwise", "rowwise", "rowwise_with_gw_hp")
SCOPES = {"text": ("blocks.",), "both": ("blocks.", "visual.blocks.")}


def use_fp8(model: Qwen3VL, recipe: str = "tensorwise", scope: str = "text") -> int:
    """Turn the blocks' linear layers into FP8 ones; returns how many.

    The head, the mergers and the patch embedding stay as they are: the head's products decide the
    loss directly, the others are small.  The tower's layers are narrow (1,024 or 1,152), where
    casts cost much of what the products gain, so they are left out by default.
    """
    if recipe not in RECIPES:
        raise ConfigError(f"fp8 is {recipe!r}", hint=f"one of {', '.join(RECIPES)}")
    if model.config.text.experts:
        raise ConfigError(
            f"model.fp8 is {recipe!r}; this model's experts are grouped products, which have no "
            "FP8 form here, and nearly all of its work is theirs",
            hint="leave model.fp8 empty",
        )
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError:
        raise MissingExtra("FP8", package="torchao", extra="gpu") from None
    chosen = {
        name
        for name, module in model.named_modules()
        if name.startswith(SCOPES[scope]) and type(module).__name__ == "Linear"
    }
    convert_to_float8_training(
        model,
        config=Float8LinearConfig.from_recipe_name(recipe),
        module_filter_fn=lambda _module, name: name in chosen,
    )
    return len(chosen)
