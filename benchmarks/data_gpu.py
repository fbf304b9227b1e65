"""The data layer beside a CUDA device: equality, rows a second, the pinned ring, nvJPEG.

usage: python benchmarks/data_gpu.py --model FOLDER [--seconds 15] [--images 96] [--dry]

Run from the repository's root; FOLDER holds the model's tokenizer.  Pictures are made here, so
nothing is fetched.  ``--dry`` does everything on the CPU with few pictures, to try the script.
Takes under two minutes.  Prints JSON.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import os
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.data.pictures import picture  # noqa: E402

from brim.data.config import DataConfig  # noqa: E402
from brim.data.decode import decode  # noqa: E402
from brim.data.loader import Loader  # noqa: E402
from brim.data.pixels import patchify, processor_values  # noqa: E402
from brim.data.prepare import prepare  # noqa: E402
from brim.data.resize import resize  # noqa: E402
from brim.data.sources import SourceConfig  # noqa: E402
from brim.data.transfer import DeviceRows  # noqa: E402


def photo(seed: int) -> bytes:
    """About a megapixel and 0.2 MB: gradients, edges and film grain, baseline JPEG."""
    rng = np.random.default_rng(seed)
    height, width = rng.integers(700, 1300, 2)
    coarse = rng.integers(0, 256, (height // 24, width // 24, 3)).astype(np.uint8)
    smooth = Image.fromarray(coarse).resize((int(width), int(height)), Image.Resampling.BICUBIC)
    grain = rng.normal(0, 6, (height, width, 1))
    pixels = np.clip(np.asarray(smooth) + grain, 0, 255).astype(np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=88)
    return out.getvalue()


def section_equality(device: str) -> dict[str, Any]:
    """The recorded sums of resized pixels, and the torchvision processor where it is installed."""
    cases = json.loads((ROOT / "tests/data/resize_sha256.json").read_text())
    found: dict[str, Any] = {"cases": len(cases), "same_bits_as_recorded": 0}
    try:
        from torchvision.transforms.v2 import functional as vision
        from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor
    except (ImportError, RuntimeError) as error:
        found["torchvision"] = f"not here: {error}"
        vision = None
    worst = 0.0
    same = 0
    for case in cases:
        (height, width), target = case["from"], case["to"]
        pixels = picture(height, width, seed=7)
        ours = resize(pixels, *target)
        found["same_bits_as_recorded"] += sha(ours) == case["sha256"]
        if vision is None:
            continue
        chw = torch.from_numpy(pixels).permute(2, 0, 1)
        mode = vision.InterpolationMode.BICUBIC
        theirs = vision.resize(chw, target, interpolation=mode, antialias=True)
        same += sha(theirs.permute(1, 2, 0).contiguous().numpy()) == case["sha256"]
        size = {"shortest_edge": 65_536, "longest_edge": 1 << 20}
        processor = Qwen2VLImageProcessor(
            patch_size=16, size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3
        )
        reference = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
        values = processor_values(patchify(torch.from_numpy(ours)[None].to(device))).cpu()
        worst = max(worst, float((values - reference).abs().max()))
    if vision is not None:
        found["torchvision_same_bits"] = same
        found["processor_max_difference"] = worst
    return found


def sha(pixels: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()


def write_set(folder: Path, images: int) -> Path:
    with ProcessPoolExecutor() as pool:
        for number, data in enumerate(pool.map(photo, range(images))):
            (folder / f"{number}.jpg").write_bytes(data)
    answer = "It shows soft colours, a few edges and some grain. " * 4
    with (folder / "train.jsonl").open("w") as f:
        for number in range(images * 50):
            turns = [
                {"role": "user", "content": "<image>\nWhat does the picture show?"},
                {"role": "assistant", "content": answer},
            ]
            record = {"messages": turns, "images": [f"{number % images}.jpg"]}
            f.write(json.dumps(record) + "\n")
    return folder / "train.jsonl"


def section_rows(model: str, folder: Path, images: int, device: str, seconds: float) -> Any:
    """Rows a second from disk to the device, as fast as they come and beside a computation."""
    source = SourceConfig(path=str(write_set(folder, images)))
    config = DataConfig(sources=(source,), max_pixels=1 << 20, max_loader_bytes=4 << 30)
    prepared = prepare(config, model)
    found = {}
    for name, step_s in (("as_fast_as_possible", 0.0), ("beside_1_s_steps", 1.0)):
        with Loader(prepared, run_dir=folder) as loader:
            found[name] = drain(loader, device, seconds, step_s if seconds > 5 else step_s / 4)
    lines = (folder / "loader.rank0.jsonl").read_text().splitlines()
    found["last_window"] = json.loads(lines[-1]) if lines else None
    return found


def drain(loader: Loader, device: str, seconds: float, step_s: float) -> dict[str, float]:
    rows, images, size = 0, 0, 0
    feed = DeviceRows(loader, device)
    next(feed)
    warm_until = time.perf_counter() + seconds / 2  # the controller finds its threads
    start = waited = 0.0
    for row in feed:
        now = time.perf_counter()
        if start:
            rows, images = rows + 1, images + row.counts.images
            size += sum(t.nbytes for t in row.tensors.values())
            if now - start > seconds:
                break
        elif now > warm_until:
            start, waited = now, loader.wait_s
        if step_s:
            compute(device, step_s)
    spent = time.perf_counter() - start
    return {
        "rows_s": rows / spent,
        "images_s": images / spent,
        "mb_per_row": size / rows / 1e6 if rows else 0.0,
        "wait_share": (loader.wait_s - waited) / spent,
    }


def compute(device: str, seconds: float) -> None:
    """Keep the device busy, the host waiting for it as a trainer's logging does."""
    if device == "cpu":
        time.sleep(seconds)
        return
    end = time.perf_counter() + seconds
    a = torch.randn(8192, 8192, device=device, dtype=torch.bfloat16)
    while time.perf_counter() < end:
        for _ in range(8):
            a @ a
        torch.cuda.synchronize()


def section_copy(size: int) -> dict[str, Any]:
    """Copies from a registered slot of the ring: against pageable memory, beside products."""
    from brim.data.ring import Ring

    ring = Ring.create(2, size)
    slots = [torch.from_numpy(ring.slot(n)) for n in range(2)]
    for slot in slots:
        slot.fill_(1)
    runtime: Any = torch.cuda.cudart()
    status = int(runtime.cudaHostRegister(slots[0].data_ptr(), slots[0].numel(), 0))
    target = torch.empty(slots[0].numel(), dtype=torch.uint8, device="cuda")
    found: dict[str, Any] = {
        "status": status,
        "is_pinned": slots[0].is_pinned(),
        "slot_mb": slots[0].numel() / 1e6,
    }
    for name, source in (("registered_gb_s", slots[0]), ("pageable_gb_s", slots[1])):
        target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(20):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        found[name] = 20 * source.numel() / (time.perf_counter() - start) / 1e9
    stream = torch.cuda.Stream()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for name, copies in (("products_alone_ms", False), ("products_beside_copies_ms", True)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(64):
            if copies:
                with torch.cuda.stream(stream):
                    target.copy_(slots[0], non_blocking=True)
            a @ a
        torch.cuda.current_stream().synchronize()
        found[name] = (time.perf_counter() - start) * 1e3
    torch.cuda.synchronize()
    runtime.cudaHostUnregister(slots[0].data_ptr())
    return found


def section_nvjpeg(folder: Path, count: int) -> dict[str, Any]:
    """Decoding on the device: its rate, and how far its pixels are from libjpeg's."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError) as error:
        return {"torchvision": f"not here: {error}"}
    files = sorted(folder.glob("*.jpg"))[:count]
    data = [torch.frombuffer(bytearray(f.read_bytes()), dtype=torch.uint8) for f in files]
    decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")
    torch.cuda.synchronize()
    start = time.perf_counter()
    images = decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")
    torch.cuda.synchronize()
    spent = time.perf_counter() - start
    errors = [
        np.abs(
            image.permute(1, 2, 0).cpu().numpy().astype(int) - decode(f.read_bytes()).astype(int)
        )
        for image, f in zip(images[:8], files, strict=False)
    ]
    return {
        "images_s": len(files) / spent,
        "mean_difference_levels": float(np.mean([e.mean() for e in errors])),
        "max_difference_levels": int(max(e.max() for e in errors)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    device = "cpu" if args.dry else "cuda"
    images, seconds = (8, 2.0) if args.dry else (args.images, args.seconds)
    found: dict[str, Any] = {
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "equality": section_equality(device),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found["rows"] = section_rows(args.model, folder, images, device, seconds)
        if not args.dry:
            found["copy"] = section_copy(256 << 20)
            found["nvjpeg"] = section_nvjpeg(folder, 32)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
