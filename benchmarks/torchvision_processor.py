"""transformers' torchvision processor, for ``data.py --torchvision PYTHON``: runs without brim.

    PYTHON benchmarks/torchvision_processor.py < commands > answers

PYTHON has torch, torchvision and transformers.  A command a line, an answer in JSON a line:

about                     versions
rate DECODER SECONDS DIR  images a second of CPU time, one thread, file → ``pixel_values``
values DIR COUNT          per picture the SHA-256 of its patches as uint8 [patches, 768] in the
                          processor's order, and the float that each of the 256 levels became

DECODER: ``pillow`` opens the file (what users of the processor do), ``torchvision`` decodes it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torchvision.io import ImageReadMode, decode_image
from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

MAX_PIXELS = 1 << 20
PATCH, MOMENTS = 16, 2


def main() -> None:
    torch.set_num_threads(1)
    model = Qwen2VLImageProcessor(
        patch_size=PATCH,
        size={"shortest_edge": 65_536, "longest_edge": MAX_PIXELS},
        image_mean=[0.5] * 3,
        image_std=[0.5] * 3,
    )
    for line in sys.stdin:
        command, *words = line.split()
        print(json.dumps(_ANSWERS[command](model, *words)), flush=True)


def about(model: Any) -> dict[str, str]:
    return {
        name: importlib.metadata.version(name)
        for name in ("torch", "torchvision", "transformers", "pillow")
    }


def rate(model: Any, decoder: str, seconds: str, folder: str) -> float:
    work, files = _WORKS[decoder], pictures(folder)
    for file in files[:3]:
        work(file, model)
    start, count = time.process_time(), 0
    while time.process_time() - start < float(seconds):
        work(files[count % len(files)], model)
        count += 1
    return count / (time.process_time() - start)


def values(model: Any, folder: str, count: str) -> dict[str, Any]:
    """Undo the normalisation, which is exact: 256 levels lie 0.008 apart."""
    sums, seen = {}, torch.full((256,), torch.nan)
    for file in pictures(folder)[: int(count)]:
        found = processed(file, model).view(-1, 3, MOMENTS, PATCH * PATCH)
        assert torch.equal(found[:, :, 0], found[:, :, 1]), "a still is shown for both moments"
        once = found[:, :, 0].reshape(len(found), -1)
        levels = ((once + 1) * 127.5).round().to(torch.uint8)
        seen[levels.long().flatten()] = once.flatten()
        assert torch.equal(seen[levels.long()], once), "a level has one value"
        sums[file.name] = hashlib.sha256(levels.numpy().tobytes()).hexdigest()
    return {"sha256": sums, "levels": [None if v != v else v for v in seen.tolist()]}


def pictures(folder: str) -> list[Path]:
    return sorted(p for p in Path(folder).iterdir() if p.suffix.lower() in (".jpg", ".jpeg"))


def processed(file: Path, model: Any) -> torch.Tensor:
    with Image.open(file) as image:
        found: torch.Tensor = model(image.convert("RGB"), return_tensors="pt")["pixel_values"]
    return found


def decoded(file: Path, model: Any) -> torch.Tensor:
    data = torch.frombuffer(bytearray(file.read_bytes()), dtype=torch.uint8)
    pixels = decode_image(data, ImageReadMode.RGB)
    found: torch.Tensor = model(pixels, return_tensors="pt")["pixel_values"]
    return found


_WORKS: dict[str, Callable[[Path, Any], torch.Tensor]] = {
    "pillow": processed,
    "torchvision": decoded,
}
_ANSWERS: dict[str, Callable[..., Any]] = {"about": about, "rate": rate, "values": values}


if __name__ == "__main__":
    main()
