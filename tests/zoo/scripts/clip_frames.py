"""Video clips: four frames are taken out of each decoded clip."""

from __future__ import annotations

import torch
from _parts import Classifier, arguments
from torch import Tensor
from torch.utils.data import DataLoader, Dataset


class Clips(Dataset[Tensor]):
    """Clips of 96 frames as uint8, held in memory as a decoder would leave them."""

    def __init__(self, length: int, own: bool) -> None:
        self.length, self.own = length, own
        self.clip = torch.randint(0, 255, (96, 3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        decoded = self.clip.clone()
        frames = decoded[index % 24 :: 24][:4]
        return frames.clone() if self.own else frames


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    clips = Clips((args.steps or 60) * 4, own=args.arm == "fixed")
    loader = DataLoader(clips, batch_size=4, num_workers=1, collate_fn=list)
    model = Classifier(width=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        frames = torch.cat(batch).float() / 255
        loss = model(frames).logsumexp(-1).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            print(f"step {step}: {loss.item():.3f}")


if __name__ == "__main__":
    main()
