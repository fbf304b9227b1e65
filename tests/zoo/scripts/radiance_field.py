"""Fit a small radiance field; the switches come from a settings module."""

from __future__ import annotations

import cProfile
import sys
import threading
from itertools import pairwise
from types import FrameType
from typing import Any

import torch
from _parts import arguments
from torch import Tensor, nn

LINES: dict[str, int] = {}


def watch(frame: FrameType, event: str, _: Any) -> Any:
    if event == "line":
        name = frame.f_code.co_filename
        LINES[name] = LINES.get(name, 0) + 1
    return watch


def settings(arm: str) -> None:
    if arm == "careful":
        torch.autograd.set_detect_anomaly(True)
    elif arm == "covered":
        threading.settrace(watch)
        sys.settrace(watch)
    elif arm == "profiled":
        cProfile.Profile().enable()


class Field(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        sizes = [63, *[64] * 16]
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(sizes))
        self.colour = nn.Linear(64, 4)

    def forward(self, points: Tensor) -> Tensor:
        waves = [points, *(f(points * 2**i) for i in range(10) for f in (torch.sin, torch.cos))]
        x = torch.cat(waves, -1)
        for layer in self.layers:
            x = torch.relu(layer(x))
        return self.colour(x).sigmoid()


def main() -> None:
    args = arguments("careful", "covered", "profiled", "fixed")
    torch.set_num_threads(1)
    settings(args.arm)
    field = Field()
    optimizer = torch.optim.Adam(field.parameters(), lr=5e-4)
    for step in range(args.steps or 1200):
        rays = torch.rand(128, 3)
        loss = (field(rays) - rays.norm(dim=-1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 200 == 0:
            print(f"iteration {step} loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
