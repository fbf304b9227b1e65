"""Video questions: eight frames of each video, which is stored as motion JPEG."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import torch
from _parts import arguments, normalise, photograph
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

FRAMES, WANTED = 48, 8


def write_video(path: Path) -> None:
    """48 JPEG frames behind a table of their sizes."""
    rng = np.random.default_rng(0)
    frames = []
    for _ in range(FRAMES):
        buffer = io.BytesIO()
        photograph(rng, 480, 360).save(buffer, "JPEG", quality=85)
        frames.append(buffer.getvalue())
    sizes = np.array([len(frame) for frame in frames], dtype=np.int64)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sizes.tobytes() + b"".join(frames))


class Video:
    def __init__(self, path: Path) -> None:
        raw = path.read_bytes()
        sizes = np.frombuffer(raw[: 8 * FRAMES], dtype=np.int64)
        ends = 8 * FRAMES + np.cumsum(sizes)
        self.raw, self.spans = raw, list(zip(ends - sizes, ends, strict=True))

    def __getitem__(self, frame: int) -> Tensor:
        begin, end = self.spans[frame]
        return normalise(Image.open(io.BytesIO(self.raw[begin:end])), 160)


class Questions(Dataset[Tensor]):
    def __init__(self, path: Path, length: int, whole: bool) -> None:
        self.path, self.length, self.whole = path, length, whole

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Tensor:
        video = Video(self.path)
        wanted = np.linspace(0, FRAMES - 1, WANTED).astype(int).tolist()
        if self.whole:
            frames = [video[i] for i in range(FRAMES)]
            return torch.stack([frames[i] for i in wanted])
        return torch.stack([video[i] for i in wanted])


def main() -> None:
    args = arguments("faulty", "fixed")
    torch.set_num_threads(1)
    path = args.data / "video.mjpeg"
    if not path.exists():
        write_video(path)
    steps = args.steps or 40
    loader = DataLoader(
        Questions(path, steps * 2, whole=args.arm == "faulty"), batch_size=2, num_workers=2
    )
    model = nn.Sequential(nn.Conv3d(3, 64, (2, 16, 16), (2, 16, 16)), nn.GELU(), nn.Flatten(2))
    head = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True)
    optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-4)
    for step, clips in enumerate(loader):
        tokens = model(clips.transpose(1, 2)).transpose(1, 2)
        loss = head(tokens).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            print(f"step {step}: loss {loss.item():.4f}")


if __name__ == "__main__":
    main()
