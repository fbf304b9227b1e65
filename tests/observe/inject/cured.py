"""A small training job for cures, and what became of the knobs in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from brim.record.applied import Error, Knob
from brim.record.steps import Process
from brim.tune.knobs import KNOBS

# A training script as people write them; what is special about it comes from outside.  The last
# line that it prints is an object: the losses of its steps, and what ``say`` adds.
JOB = """
import json, os, sys, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

def main():
    torch.manual_seed(0)
    all_x, all_y = torch.randn(64, 8), torch.randn(64, 1)
    data = TensorDataset(all_x, all_y)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    loader_options, zero, steps, accumulate = {{}}, {{}}, {steps}, 1
    losses, say = [], {{}}
    in_step = lambda n: None
{setup}
    optimizer = {optimizer}
    loader = DataLoader(data, batch_size=8, shuffle=True, **loader_options)
    n = 0
    while n < steps:
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad(**zero)
            losses.append(loss.item())
            n += 1
            in_step(n)
            if n == steps:
                break
{end}
    print(json.dumps(dict(say, losses=losses)))

if __name__ == "__main__":
    main()
"""

# A tiny Qwen3-VL with its vision tower, and samples of one image and a few tokens for it.
TINY_QWEN = """
import torch
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

def make_model():
    text = dict(vocab_size=200, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                num_attention_heads=4, num_key_value_heads=2, head_dim=8,
                rope_scaling={"rope_type": "default", "mrope_section": [2, 1, 1]})
    vision = dict(depth=2, hidden_size=32, intermediate_size=64, num_heads=4, out_hidden_size=32,
                  patch_size=4, spatial_merge_size=2, temporal_patch_size=2,
                  num_position_embeddings=16, deepstack_visual_indexes=[0])
    return Qwen3VLForConditionalGeneration(Qwen3VLConfig(
        text_config=text, vision_config=vision, image_token_id=150, vision_start_token_id=151,
        vision_end_token_id=152, video_token_id=153, attn_implementation="eager"))

def sample():
    ids = torch.tensor([5, 151, 150, 150, 150, 150, 152, *torch.randint(1, 100, (3,)).tolist()])
    return dict(input_ids=ids, labels=ids, attention_mask=torch.ones_like(ids),
                mm_token_type_ids=(ids == 150).int(), pixel_values=torch.randn(16, 3 * 2 * 4 * 4),
                image_grid_thw=torch.tensor([[1, 4, 4]]))

def collate(samples):
    joined = ("pixel_values", "image_grid_thw")
    return {k: (torch.cat if k in joined else torch.stack)([s[k] for s in samples])
            for k in samples[0]}
"""
SGD = "torch.optim.SGD(model.parameters(), lr=0.05)"


def job(setup: str = "", end: str = "", *, steps: int = 8, optimizer: str = SGD) -> str:
    """``setup`` runs before the optimizer is made, ``end`` after the last step."""
    import textwrap

    inner = [textwrap.indent(textwrap.dedent(part), "    ") for part in (setup, end)]
    return JOB.format(setup=inner[0], end=inner[1], steps=steps, optimizer=optimizer)


@dataclass(frozen=True, kw_only=True)
class Cured:
    """A job that ran to its end."""

    knobs: dict[str, Knob]
    said: dict[str, Any]
    """The object that it printed last; rank 0's."""
    ranks: list[tuple[dict[str, Knob], dict[str, Any]]]
    """The same two of every rank."""
    processes: list[Process]
    error: Error | None
    code: int
    stderr: str

    @property
    def losses(self) -> list[float]:
        found: list[float] = self.said["losses"]
        return found

    def states(self) -> dict[str, str]:
        return {id: knob.state for id, knob in self.knobs.items()}


RunCured = Callable[..., Cured]


class Plan:
    """Stands for ``cure.plan`` and remembers what cures say."""

    def __init__(self) -> None:
        self.states: dict[str, tuple[str, str]] = {}
        """Knob → (state, reason)."""
        self.was: dict[str, Any] = {}

    @property
    def known(self) -> set[str]:
        return set(KNOBS)

    def report(self, id: str, state: str, reason: str, was: Any) -> None:
        self.states[id], self.was[id] = (state, reason), was
