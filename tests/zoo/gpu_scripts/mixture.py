"""A decoder whose feed-forward layers are mixtures of experts, called one by one or all at once."""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from _decoder import Block
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("--arm", choices=("faulty", "fixed"), default="faulty")
parser.add_argument("--experts", type=int, default=32)
parser.add_argument("--width", type=int, default=1024)
parser.add_argument("--layers", type=int, default=8)
parser.add_argument("--length", type=int, default=1024)
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--tiny", action="store_true", help="a few steps on any machine")
args = parser.parse_args()
if args.tiny:
    args.experts, args.width, args.layers, args.length, args.steps = 4, 64, 1, 32, 3
TOP, BATCH = 2, 4
device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)


class Mixture(nn.Module):
    def __init__(self, width: int, experts: int) -> None:
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.randn(experts, width, 2 * width) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, 2 * width, width) * width**-0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(tokens, width) → (tokens, width)"""
        weights, chosen = self.router(x).softmax(-1).topk(TOP, -1)
        return (self.one_by_one if args.arm == "faulty" else self.at_once)(x, weights, chosen)

    def one_by_one(
        self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor
    ) -> torch.Tensor:
        out = torch.zeros_like(x)
        for expert in range(args.experts):
            token, place = torch.where(chosen == expert)
            y = F.silu(x[token] @ self.up[expert]) @ self.down[expert]
            out.index_add_(0, token, y * weights[token, place, None])
        return out

    def at_once(self, x: torch.Tensor, weights: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
        order = chosen.flatten().argsort(stable=True)
        token = order // TOP
        counts = torch.bincount(chosen.flatten(), minlength=args.experts)
        ends = counts.cumsum(0).to(torch.int32)
        y = F.silu(torch._grouped_mm(x[token], self.up, offs=ends))
        y = torch._grouped_mm(y, self.down, offs=ends) * weights.flatten()[order, None]
        return torch.zeros_like(x).index_add_(0, token, y)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block(args.width, max(1, args.width // 64))
        self.norm, self.mixture = nn.LayerNorm(args.width), Mixture(args.width, args.experts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.block(x)
        return x + self.mixture(self.norm(x).flatten(0, 1)).view_as(x)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(8192, args.width)
        self.layers = nn.ModuleList(Layer() for _ in range(args.layers))
        self.head = nn.Linear(args.width, 8192, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        logits = self.head(x[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())


model = Model().to(device, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
for step in range(args.steps):
    ids = torch.randint(8192, (BATCH, args.length), device=device)
    loss = model(ids)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 20 == 19:
        print(step, float(loss), flush=True)
