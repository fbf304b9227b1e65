"""Pre-training with saves, sample images and a validation pass now and then."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from _parts import Decoder, arguments, caption, encode
from PIL import Image
from torch import Tensor

SAVE_EVERY = {"saves": 5, "saves-fixed": 10_000}


def save(path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    with path.open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())


def dump_attention(folder: Path, model: Decoder, step: int) -> None:
    """One picture of each weight matrix."""
    for name, weight in model.named_parameters():
        if weight.ndim == 2:
            values = weight.detach().numpy()
            scaled = np.clip((values - values.min()) / (np.ptp(values) + 1e-6) * 255, 0, 255)
            image = Image.fromarray(scaled.astype(np.uint8)).resize((512, 512))
            image.save(folder / f"{step}-{name}.png")


def validate(model: Decoder, batches: list[Tensor]) -> float:
    predictions: list[list[list[float]]] = []
    with torch.no_grad():
        for ids in batches:
            logits = model.head(model.features(ids))
            predictions.extend(logits.numpy().tolist())
    flat = np.concatenate([np.asarray(rows) for rows in predictions])
    return float(flat.argmax(-1).mean())


def main() -> None:
    args = arguments("saves", "saves-fixed", "pictures", "validates", "validates-fixed")
    torch.set_num_threads(1)
    folder = args.data / "saves"
    folder.mkdir(parents=True, exist_ok=True)
    big = args.arm.startswith("saves")
    model = Decoder(hidden=512 if big else 96, layers=6 if big else 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    held_out = [torch.tensor([encode(caption(i, 128))] * 8) for i in range(4)]
    every = {"validates": 12, "validates-fixed": 10_000}.get(args.arm, 0)
    save_every = SAVE_EVERY.get(args.arm, 10_000)
    for step in range(args.steps or (40 if big else 70)):
        ids = torch.tensor([encode(caption(step * 8 + i, 32 if big else 192)) for i in range(2)])
        loss = model(ids, ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % save_every == save_every - 1:
            save(folder / "latest.pt", model, optimizer)
        if args.arm == "pictures" and step % 10 == 9:
            dump_attention(folder, model, step)
        if every and step % every == every - 1:
            print(f"step {step} validation {validate(model, held_out):.3f}")


if __name__ == "__main__":
    main()
