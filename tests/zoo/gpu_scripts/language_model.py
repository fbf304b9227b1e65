"""Train a decoder on random tokens: width, batch and what the loop does besides are arguments."""

from __future__ import annotations

import argparse
import gc

import torch
from _decoder import Decoder

parser = argparse.ArgumentParser()
parser.add_argument("--width", type=int, default=256)
parser.add_argument("--layers", type=int, default=24)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
parser.add_argument("--log-every", type=int, default=50)
parser.add_argument("--fused", action="store_true")
parser.add_argument("--tf32", action="store_true")
parser.add_argument("--tidy", action="store_true", help="free what is not needed after each step")
parser.add_argument("--objects", type=int, default=0, help="size of an index kept in memory")
parser.add_argument("--norms", action="store_true", help="log the gradient norm of each layer")
parser.add_argument("--prepare", type=int, default=0, help="words to encode for the next batch")
parser.add_argument("--vary", action="store_true", help="samples of varying length")
args = parser.parse_args()

torch.manual_seed(0)
if args.tf32:
    torch.set_float32_matmul_precision("high")
model = Decoder(8193, args.width, args.layers, max(4, args.width // 64)).cuda()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False, fused=args.fused)
index = [(i, str(i), [i]) for i in range(args.objects)]
lengths = torch.randint(64, args.length + 1, (args.steps,)).tolist()
words = [f"word{i * 7919 % 65521}" for i in range(args.prepare)]
total = torch.zeros((), device="cuda")
history: list[str] = []
for step in range(args.steps):
    length = lengths[step] if args.vary else args.length
    encoded = [sum(map(ord, word)) % 8192 for word in words]
    ids = torch.randint(8192, (args.batch, length), device="cuda") + len(encoded) % 2
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.dtype == "bfloat16"):
        loss = model(ids)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    if args.norms:
        norms = {n: p.grad.norm().item() for n, p in model.named_parameters()}
        history.append(max(norms, key=norms.__getitem__))
    optimizer.step()
    optimizer.zero_grad()
    total += loss.detach()
    if step % args.log_every == args.log_every - 1:
        print(f"step {step} loss {loss.item():.4f} norm {norm.item():.3f}", flush=True)
    if args.tidy:
        gc.collect()
        torch.cuda.empty_cache()
print(f"mean loss {total.item() / args.steps:.4f} over {args.steps} steps, {len(index)} entries")
