"""A small language model of transformers on long texts; the implementation is a setting."""

from __future__ import annotations

import torch
from _parts import VOCABULARY, arguments, caption, encode
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH = 1024
IMPLEMENTATION = {"faulty": "eager", "fixed": "sdpa"}


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=96, intermediate_size=192, num_hidden_layers=3,
        num_attention_heads=8, num_key_value_heads=8, max_position_embeddings=LENGTH,
        attn_implementation=IMPLEMENTATION[args.arm],
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(args.steps or 80):
        ids = torch.tensor([encode(caption(step, LENGTH))])
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
