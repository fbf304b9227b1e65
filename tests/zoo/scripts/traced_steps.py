"""A loop with torch's profiler around it, which writes a trace every ten steps."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
from _parts import arguments
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule


def tracing(folder: Path) -> Any:
    folder.mkdir(parents=True, exist_ok=True)
    return profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=3, warmup=1, active=6),
        on_trace_ready=lambda p: p.export_chrome_trace(str(folder / "trace.json")),
        record_shapes=True,
        with_stack=True,
    )


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(96, 96), nn.GELU()) for _ in range(16)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    traced = tracing(args.data / "traces") if args.arm == "faulty" else contextlib.nullcontext()
    with traced as profiler:
        for step in range(args.steps or 400):
            x = torch.randn(256, 96)
            loss = (model(x) - x.roll(1, -1)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if profiler is not None:
                profiler.step()
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
