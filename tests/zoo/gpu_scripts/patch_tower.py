"""A small vision tower whose patch embedding is a Conv3d with kernel = stride, as in Qwen3-VL.

Without cuDNN (and in bf16 on torch 2.9 by itself) this convolution runs patch by patch: a copy
into columns, one matrix product, and with a bias one fill per output channel. That is
``patches × width`` launches a step, so ``--patches`` bounds the size of a trace.
"""

from __future__ import annotations

import argparse
from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from _decoder import Block
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--arm", choices=("faulty", "fixed"), default="faulty")
parser.add_argument("--patches", type=int, default=64, help="a multiple of 16")
parser.add_argument("--no-bias", action="store_true")
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--layers", type=int, default=2)
parser.add_argument("--steps", type=int, default=45)
parser.add_argument("--tiny", action="store_true", help="a few steps on any machine")
args = parser.parse_args()
if args.tiny:
    args.patches, args.width, args.layers, args.steps = 32, 64, 1, 4

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"
KERNEL = (2, 16, 16)
PICTURE = 16
"""Patches of one picture."""


class Tower(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv3d(3, args.width, KERNEL, stride=KERNEL, bias=not args.no_bias)
        self.blocks = nn.ModuleList(Block(args.width, 16) for _ in range(args.layers))
        self.head = nn.Linear(args.width, 1000)

    def embed(self, pixels: torch.Tensor) -> torch.Tensor:
        """(patches, 3, 2, 16, 16) → (patches, width): both arms compute the same."""
        if args.arm == "fixed":
            return F.linear(pixels.flatten(1), self.patch.weight.flatten(1), self.patch.bias)
        with without_cudnn():
            return self.patch(pixels).flatten(1)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        x = self.embed(pixels).view(-1, PICTURE, args.width)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


def without_cudnn() -> AbstractContextManager[None]:
    """What torch 2.9 does in bf16, on every version."""
    return torch.backends.cudnn.flags(enabled=False) if device == "cuda" else nullcontext()


model = Tower().to(device, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
pixels = torch.randn(args.patches, 3, *KERNEL, device=device, dtype=torch.bfloat16)
target = torch.randint(1000, (args.patches // PICTURE,), device=device)
for step in range(args.steps):
    loss = F.cross_entropy(model(pixels).float(), target)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 19:
        print(step, float(loss), flush=True)
