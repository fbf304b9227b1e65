"""Adam with its master weights and moments in host memory, as offloading engines keep them."""

from __future__ import annotations

import argparse

import torch
from _decoder import Decoder

parser = argparse.ArgumentParser()
parser.add_argument("--arm", choices=("faulty", "fixed"), default="faulty")
parser.add_argument("--steps", type=int, default=32)
args = parser.parse_args()

torch.manual_seed(0)
model = Decoder(32000, 1024, 20, 16).cuda().to(torch.bfloat16)
place = "cpu" if args.arm == "faulty" else "cuda"
masters = [p.detach().to(place, torch.float32).requires_grad_() for p in model.parameters()]
optimizer = torch.optim.AdamW(masters, lr=1e-4)
for step in range(args.steps):
    ids = torch.randint(32000, (4, 1024), device="cuda")
    loss = model(ids)
    loss.backward()
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters(), strict=True):
            master.grad = parameter.grad.to(place, torch.float32)
            parameter.grad = None
    optimizer.step()
    with torch.no_grad():
        for master, parameter in zip(masters, model.parameters(), strict=True):
            parameter.copy_(master)
    if step % 10 == 9:
        print(step, float(loss), flush=True)
