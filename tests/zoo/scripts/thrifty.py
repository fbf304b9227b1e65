"""A decoder trained with the settings that a larger one needed."""

from __future__ import annotations

import torch
from _parts import Decoder, arguments, caption, encode
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import LlamaConfig, LlamaForCausalLM


class Thrifty(Decoder):
    def features(self, input_ids: Tensor) -> Tensor:
        length = input_ids.shape[1]
        x = self.tokens(input_ids) + self.places(torch.arange(length))
        mask = torch.nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            x = checkpoint(block, x, src_mask=mask, is_causal=True, use_reentrant=False)
        return self.norm(x)


def llama(thrifty: bool) -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=260, hidden_size=128, intermediate_size=384, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=4,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    if thrifty:
        model.gradient_checkpointing_enable()
    return model


def main() -> None:
    args = arguments("faulty", "fixed", "hub", "hub-fixed")
    torch.set_num_threads(1)
    model: torch.nn.Module
    if args.arm.startswith("hub"):
        model = llama(args.arm == "hub").train()
    else:
        model = Thrifty() if args.arm == "faulty" else Decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for step in range(args.steps or 60):
        ids = torch.tensor([encode(caption(step * 4 + i, 192)) for i in range(4)])
        output = model(input_ids=ids, labels=ids)
        loss = output if isinstance(output, Tensor) else output.loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
