"""Fine-tune Qwen3-VL with transformers: batches padded to the longest, SDPA, bf16.

Random weights and photographs made of noise: speed does not depend on them.  The vision tower is
frozen, as in the recipes of most frameworks; with ``--train-vision`` a batch of 8 needs more than
141 GB (weights, gradients and moments 35, activations of the text 83, of the tower 31).
"""

from __future__ import annotations

import argparse
import importlib.util

import torch
from torch.utils.data import DataLoader, Dataset
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

parser = argparse.ArgumentParser()
parser.add_argument("--layers", type=int, default=36)
parser.add_argument("--width", type=int, default=2560)
parser.add_argument("--batch", type=int, default=8)
parser.add_argument("--side", type=int, nargs=2, default=(56, 72), help="patches a side, even")
parser.add_argument("--text", type=int, nargs=2, default=(100, 1500), help="tokens of text")
parser.add_argument("--train-vision", action="store_true")
parser.add_argument("--steps", type=int, default=45)
parser.add_argument("--device", default="cuda")
parser.add_argument("--tiny", action="store_true", help="a few steps on any machine")
args = parser.parse_args()
if args.tiny:
    args.layers, args.width, args.batch, args.steps, args.device = 2, 64, 2, 3, "cpu"
    args.side, args.text = (4, 8), (10, 40)

IMAGE, START, END = 151655, 151652, 151653
torch.manual_seed(0)


class Chats(Dataset):
    """One photograph of about a megapixel (1,024 visual tokens), and a text of any length."""

    def __len__(self) -> int:
        return args.steps * args.batch

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        g = torch.Generator().manual_seed(i)
        low, high = args.side
        rows, columns = (
            2 * int(torch.randint(low // 2, high // 2 + 1, (1,), generator=g)) for _ in range(2)
        )
        length = int(torch.randint(args.text[0], args.text[1] + 1, (1,), generator=g))
        text = torch.randint(1000, 100000, (length,), generator=g)
        ids = torch.cat(
            [
                torch.tensor([START]),
                torch.full((rows * columns // 4,), IMAGE),
                torch.tensor([END]),
                text,
            ]
        )
        pixels = torch.rand(rows * columns, 1536, dtype=torch.bfloat16)
        return {"ids": ids, "pixels": pixels, "grid": torch.tensor([1, rows, columns])}


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    longest = max(len(s["ids"]) for s in samples)
    ids = torch.full((len(samples), longest), 151643)
    mask = torch.zeros(len(samples), longest, dtype=torch.long)
    for row, sample in enumerate(samples):
        ids[row, : len(sample["ids"])] = sample["ids"]
        mask[row, : len(sample["ids"])] = 1
    labels = ids.masked_fill((mask == 0) | (ids == IMAGE), -100)
    return {
        "input_ids": ids,
        "attention_mask": mask,
        "labels": labels,
        "pixel_values": torch.cat([s["pixels"] for s in samples]),
        "image_grid_thw": torch.stack([s["grid"] for s in samples]),
        "mm_token_type_ids": (ids == IMAGE).long(),
    }


config = Qwen3VLConfig()
text, vision = config.text_config, config.vision_config
text.num_hidden_layers, text.hidden_size = args.layers, args.width
heads = 32 if not args.tiny else 4
text.num_attention_heads, text.num_key_value_heads, text.head_dim = heads, heads // 4, 128
text.intermediate_size, text.vocab_size = 9728 * args.width // 2560, 151936
vision.depth, vision.hidden_size, vision.num_heads = (2, 64, 4) if args.tiny else (24, 1024, 16)
vision.intermediate_size, vision.out_hidden_size = 4 * vision.hidden_size, args.width
vision.deepstack_visual_indexes = [0] if args.tiny else [5, 11, 17]
config.tie_word_embeddings = True
if args.device == "cuda" and importlib.util.find_spec("liger_kernel"):
    from liger_kernel.transformers import apply_liger_kernel_to_qwen3_vl

    apply_liger_kernel_to_qwen3_vl()
with torch.device(args.device):
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen3VLForConditionalGeneration(config)
    torch.set_default_dtype(torch.float32)
model.train()
if not args.train_vision:
    model.model.visual.requires_grad_(False)
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=args.device == "cuda")
loader = DataLoader(
    Chats(),
    args.batch,
    collate_fn=collate,
    num_workers=0 if args.tiny else 8,
    pin_memory=args.device == "cuda",
)
for step, batch in enumerate(loader):
    batch = {k: v.to(args.device, non_blocking=True) for k, v in batch.items()}
    loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if step % 10 == 9:
        print(step, float(loss), flush=True)
