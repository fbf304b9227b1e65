"""A small vision tower over image patches, and a head."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from _decoder import Block
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--arm", choices=("faulty", "fixed"), default="faulty")
parser.add_argument("--steps", type=int, default=45)
args = parser.parse_args()

torch.manual_seed(0)
# the slow path that torch 2.9 takes for this convolution in bf16 is asked for by name elsewhere
torch.backends.cudnn.enabled = args.arm == "fixed"
width, patches = 1152, 1280


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv3d(3, width, (2, 14, 14), stride=(2, 14, 14))
        self.blocks = nn.ModuleList(Block(width, 16) for _ in range(2))
        self.head = nn.Linear(width, 1000)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        if args.arm == "fixed":
            x = F.linear(pixels.flatten(1), self.patch.weight.flatten(1), self.patch.bias)
        else:
            x = self.patch(pixels).flatten(1)
        x = x.view(20, -1, width)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


model = Tower().cuda().to(torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
pixels = torch.randn(patches, 3, 2, 14, 14, device="cuda", dtype=torch.bfloat16)
target = torch.randint(1000, (20,), device="cuda")
for step in range(args.steps):
    loss = F.cross_entropy(model(pixels).float(), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 19:
        print(step, float(loss), flush=True)
