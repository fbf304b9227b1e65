"""Memory of one rank when the model is spread over several: arithmetic on sizes.

A sharded model is cut into groups that are gathered and reduced as one: every block of both
towers, every merger, what is left of the tower, and the root (embedding, last norm, head).
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from torch import nn

from brim.model.memory import Memory
from brim.model.qwen3vl import Qwen3VL


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How one copy of the model lies on the ranks, and what a step keeps of it."""

    shards: int = 1
    """Ranks that share one copy; 1: each has its own."""
    by_group: bool = False
    """Weights are gathered, and gradients reduced, group by group (FSDP2)."""
    gathered: bool = False
    """Weights stay whole from the first row of a step to its last."""
    whole_gradients: bool = False
    """Gradients of several rows are added up before they are reduced, once a step."""
    reduce_bytes: int = 4
    """Bytes of a gradient's element while it is reduced."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankMemory:
    """Bytes of one rank by what they hold; ``total`` is the peak to plan for."""

    weights: int
    gradients: int
    states: int
    gathered: int
    """Whole weights while they are used."""
    reducing: int
    """Whole gradients before they are reduced, and the buffers that reduce them."""
    activations: int

    @property
    def total(self) -> int:
        return sum(getattr(self, f.name) for f in fields(self))


def groups(model: Qwen3VL) -> dict[str, nn.Module]:
    """The modules that are gathered as one, inner ones before those that hold them."""
    tower = model.visual
    found: dict[str, nn.Module] = {f"visual.blocks.{i}": b for i, b in enumerate(tower.blocks)}
    found |= {f"visual.deepstack.{i}": m for i, m in enumerate(tower.deepstack)}
    found |= {"visual.merger": tower.merger, "visual": tower}
    found |= {f"blocks.{i}": b for i, b in enumerate(model.blocks)}
    return found | {"": model}


def owners(model: Qwen3VL) -> dict[str, str]:
    """Parameter → the innermost group that holds it."""
    held = groups(model)
    found = {}
    for name, _ in model.named_parameters():
        owner = name
        while owner not in held:
            owner = owner.rpartition(".")[0]
        found[name] = owner
    return found


def group_sizes(model: Qwen3VL, *, trained: bool = False) -> dict[str, int]:
    """Bytes of each group's own parameters; with ``trained`` of those that learn."""
    sizes = dict.fromkeys(groups(model), 0)
    owner = owners(model)
    for name, parameter in model.named_parameters():
        if parameter.requires_grad or not trained:
            sizes[owner[name]] += parameter.numel() * parameter.element_size()
    return sizes


def on_a_rank(model: Qwen3VL, whole: Memory, spread: Spread, *, ahead: int = 1) -> RankMemory:
    """``whole``: the same step on one device; ``ahead``: groups gathered before their turn."""
    activations = whole.text + whole.tower + whole.loss + whole.passing
    if not spread.by_group:
        return RankMemory(
            weights=whole.weights, gradients=whole.gradients, states=whole.states,
            gathered=0, reducing=0, activations=activations,
        )  # fmt: skip
    weights, learnt = group_sizes(model), group_sizes(model, trained=True)
    per_gradient = spread.reduce_bytes / next(model.parameters()).element_size()
    if spread.whole_gradients:
        reducing = per_gradient * sum(learnt.values())
    else:  # the group at work, and the one whose reduction is under way
        reducing = learnt[""] + _most(learnt, 1) + per_gradient * _most(learnt, 2)
    return RankMemory(
        weights=-(-whole.weights // spread.shards),
        gradients=-(-whole.gradients // spread.shards),
        states=-(-whole.states // spread.shards),
        gathered=sum(weights.values())
        if spread.gathered
        else weights[""] + _most(weights, 1 + ahead),
        reducing=int(reducing),
        activations=activations,
    )


def _most(sizes: dict[str, int], count: int) -> int:
    """Bytes of the ``count`` largest groups, the root left out."""
    return sum(sorted((n for name, n in sizes.items() if name), reverse=True)[:count])
