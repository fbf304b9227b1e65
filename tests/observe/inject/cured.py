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
    """The object that it printed last."""
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
