"""The data layer beside a CUDA device: equality, rows a second, the pinned ring, nvJPEG.

usage: python benchmarks/data_gpu.py [--json FILE] [--model FOLDER] [--seconds 12] [--dry]

equality  pixels against recorded sums and the torchvision processor of transformers; patches that
          the device cut against those that the loader cut, bit by bit
cut       microseconds to cut, normalise and cast one row's pictures: Triton, and plain torch
copy      a slot of the ring to the device: registered, pageable, beside products
rows      from files to the device: as fast as it goes with all usable cores, and the share of its
          time that a step of --step seconds waits; with libjpeg, and with nvJPEG
nvjpeg    decoding alone, and how far its pixels are from libjpeg's

Pictures and, without --model, a tokenizer of single bytes are made here; nothing is fetched.
``--dry`` does what a CPU can with few pictures, to try the script.  Two minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import io
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.data import qwen  # noqa: E402
from tests.data.pictures import picture  # noqa: E402

from brim.data.config import DataConfig  # noqa: E402
from brim.data.decode import decode  # noqa: E402
from brim.data.loader import Loader  # noqa: E402
from brim.data.nvjpeg import nvjpeg  # noqa: E402
from brim.data.pixels import (  # noqa: E402
    cut,
    kernel,
    patchify,
    processor_values,
    reference_cut,
)
from brim.data.prepare import Prepared, prepare  # noqa: E402
from brim.data.resize import resize  # noqa: E402
from brim.data.rows import lay  # noqa: E402
from brim.data.sources import SourceConfig  # noqa: E402
from brim.data.transfer import DeviceRows  # noqa: E402
from brim.record.loader import read_loader  # noqa: E402

Figures = dict[str, Any]


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


def section_pixels(device: str) -> Figures:
    """The recorded sums of resized pixels, and the torchvision processor where it is installed."""
    cases = json.loads((ROOT / "tests/data/resize_sha256.json").read_text())
    found: Figures = {"cases": len(cases), "same_bits_as_recorded": 0}
    try:
        torchvision_pixels, processor = references()
    except (ImportError, RuntimeError) as error:
        found["torchvision"] = f"not here: {error}"
        torchvision_pixels = processor = None
    worst, same = 0.0, 0
    for case in cases:
        (height, width), target = case["from"], case["to"]
        pixels = picture(height, width, seed=7)
        ours = resize(pixels, *target)
        found["same_bits_as_recorded"] += sha(ours) == case["sha256"]
        if processor is None:
            continue
        same += sha(torchvision_pixels(pixels, target)) == case["sha256"]
        reference = processor(Image.fromarray(pixels), return_tensors="pt")["pixel_values"]
        patches = patchify(torch.from_numpy(np.ascontiguousarray(ours)).to(device)[None])
        values = processor_values(patches).cpu()
        if values.shape == reference.shape:
            worst = max(worst, float((values - reference).abs().max()))
        else:
            found.setdefault("of_another_size", []).append(case["name"])
    if processor is not None:
        found["torchvision_has_the_same_bits"] = same
        found["processor_max_difference"] = worst
    return found


def references() -> tuple[Callable[..., np.ndarray], Any]:
    from torchvision.transforms.v2 import functional as vision
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import Qwen2VLImageProcessor

    mode = vision.InterpolationMode.BICUBIC

    def resized(pixels: np.ndarray, target: Any) -> np.ndarray:
        chw = torch.from_numpy(pixels).permute(2, 0, 1)
        found = vision.resize(chw, target, interpolation=mode, antialias=True)
        return found.permute(1, 2, 0).numpy()

    size = {"shortest_edge": 65_536, "longest_edge": 1 << 20}
    processor = Qwen2VLImageProcessor(
        patch_size=16, size=size, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    return resized, processor


def sha(pixels: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(pixels).tobytes()).hexdigest()


def section_rows_equal(prepared: Prepared, device: str, rows: int) -> Figures:
    """Rows whose pictures the device cut, against rows that the loader's process cut."""
    compared = {"rows": 0, "tensors": 0, "different": 0}
    steps = -(-rows // prepared.config.rows_per_step)
    with (
        Loader(prepared, stop=steps) as cut_there,
        Loader(prepared, stop=steps, whole=True) as all_,
    ):
        for ours, theirs in zip(DeviceRows(all_, device), cut_there, strict=True):
            compared["rows"] += 1
            for name, array in theirs.arrays.items():
                compared["tensors"] += 1
                compared["different"] += not np.array_equal(ours.tensors[name].cpu().numpy(), array)
            theirs.release()
    return compared


def section_cut(device: str) -> Figures:
    """One row's pictures, 8 of a megapixel, whole as the loader leaves them → bf16 patches."""
    frames = [picture(1024, 992, seed) for seed in range(8)]
    pixels, table, at, first = np.empty(sum(f.size for f in frames), np.uint8), [], 0, 0
    for frame in frames:
        planes = np.ascontiguousarray(frame.transpose(2, 0, 1)).transpose(1, 2, 0)
        table.append((at, first, 64, 62, *lay(planes, pixels[at : at + frame.size]), 0))
        at, first = at + frame.size, first + 64 * 62
    on_host = torch.tensor(table)
    on_device = torch.from_numpy(pixels).to(device)
    shape = {"patch": 16, "merge": 2}
    whole = cut(on_device, on_host.to(device), on_host, moments=1, dtype=torch.bfloat16, **shape)
    found: Figures = {"patches": first, "megabytes_in": pixels.nbytes / 1e6}
    for name, function in (("chosen", kernel(device)), ("plain_torch", reference_cut)):
        where = on_host if function is reference_cut else on_host.to(device)
        out = torch.empty_like(whole)

        def once(function: Any = function, where: Any = where, out: Any = out) -> None:
            function(on_device, where, out, largest=64 * 62, **shape)

        found[f"{name}_us"] = microseconds(once, device)
        found[f"{name}_same_bits"] = bool(torch.equal(out, whole))
    found["kernel"] = kernel(device).__module__
    return found


def microseconds(work: Callable[[], None], device: str) -> float:
    times = 3 if device == "cpu" else 50
    for _ in range(2):
        work()
    synchronize(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    return (time.perf_counter() - start) / times * 1e6


def synchronize(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize()


def write_set(folder: Path, images: int) -> Path:
    with ProcessPoolExecutor() as pool:
        for number, data in enumerate(pool.map(photo, range(images))):
            (folder / f"{number}.jpg").write_bytes(data)
    answer = "It shows soft colours, a few edges and some grain. "
    with (folder / "train.jsonl").open("w") as f:
        for number in range(images * 50):
            turns = [
                {"role": "user", "content": "<image>\nWhat does the picture show?"},
                {"role": "assistant", "content": answer * (1 + number % 3)},
            ]
            record = {"messages": turns, "images": [f"{number % images}.jpg"]}
            f.write(json.dumps(record) + "\n")
    return folder / "train.jsonl"


def prepared_set(model: str | None, folder: Path, images: int) -> Prepared:
    if model is None:
        model = str(folder / "tokenizer")
        qwen.build_small(Path(model))
    source = SourceConfig(path=str(write_set(folder, images)))
    config = DataConfig(sources=(source,), max_pixels=1 << 20, max_loader_bytes=4 << 30)
    return prepare(config, model)


def section_rows(prepared: Prepared, folder: Path, device: str, args: Any, on_gpu: bool) -> Figures:
    """From files to the device, as fast as they come and beside steps."""
    config = dataclasses.replace(prepared.config, nvjpeg=on_gpu)
    prepared = dataclasses.replace(prepared, config=config)
    found: Figures = {}
    for name, step_s in (("as_fast_as_possible", 0.0), (f"steps_of_{args.step:g}_s", args.step)):
        records = folder / f"{name}-{on_gpu}"
        records.mkdir()
        with Loader(prepared, run_dir=records, whole=device != "cpu") as loader:
            found[name] = drain(loader, device, args.seconds, step_s)
        windows = read_loader(records / "loader.rank0.jsonl").windows
        last = max(windows[len(windows) // 2 :], key=lambda window: window.images)
        found[name] |= {"threads": last.threads, "depth": last.depth, "bound_by": last.bound_by}
        found[name]["thread_ms_per_image"] = {
            stage: 1e3 * seconds / max(last.images, 1) for stage, seconds in last.stages.items()
        }
        if last.nvjpeg_error is not None:
            found["mean_difference_of_resized_pixels"] = last.nvjpeg_error
    return found


def drain(loader: Loader, device: str, seconds: float, step_s: float) -> Figures:
    """Take rows for half of ``seconds`` to warm up, then for ``seconds``."""
    rows = images = size = 0
    feed = DeviceRows(loader, device, torch.bfloat16)
    compute(device, 0.01)  # the first product makes a context of its own
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
        for _ in range(4):
            a @ a
        torch.cuda.synchronize()


def section_copy(size: int) -> Figures:
    """Copies from a registered slot of the ring: against pageable memory, beside products."""
    from brim.data.ring import Ring

    ring = Ring.create(2, size)
    slots = [torch.from_numpy(ring.slot(n)) for n in range(2)]
    for slot in slots:
        slot.fill_(1)
    runtime: Any = torch.cuda.cudart()
    status = int(runtime.cudaHostRegister(slots[0].data_ptr(), slots[0].numel(), 0))
    target = torch.empty(slots[0].numel(), dtype=torch.uint8, device="cuda")
    found: Figures = {
        "status": status,
        "is_pinned": slots[0].is_pinned(),
        "slot_mb": slots[0].numel() / 1e6,
    }
    for name, source in (("registered_gb_s", slots[0]), ("pageable_gb_s", slots[1])):
        spent = microseconds(lambda s=source: target.copy_(s, non_blocking=True), "cuda")
        found[name] = source.numel() / spent / 1e3
    stream = torch.cuda.Stream()
    a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16)
    for name, copies in (("products_alone_ms", False), ("products_beside_copies_ms", True)):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for number in range(64):
            if copies and number % 8 == 0:
                with torch.cuda.stream(stream):
                    target.copy_(slots[0], non_blocking=True)
            a @ a
        torch.cuda.current_stream().synchronize()
        found[name] = (time.perf_counter() - start) * 1e3
    torch.cuda.synchronize()
    runtime.cudaHostUnregister(slots[0].data_ptr())
    return found


def section_nvjpeg(folder: Path, count: int) -> Figures:
    """Decoding on the device: its rate, and how far its pixels are from libjpeg's."""
    try:
        from torchvision.io import ImageReadMode, decode_jpeg
    except (ImportError, RuntimeError) as error:
        return {"torchvision": f"not here: {error}"}
    files = [file.read_bytes() for file in sorted(folder.glob("*.jpg"))[:count]]
    one = nvjpeg(torch.device("cuda"))
    data = [torch.frombuffer(bytearray(f), dtype=torch.uint8) for f in files]
    found = {}
    for name, work in (
        ("images_s_one_by_one", lambda: [one(f) for f in files]),
        ("images_s_in_batches", lambda: decode_jpeg(data, mode=ImageReadMode.RGB, device="cuda")),
    ):
        work()
        torch.cuda.synchronize()
        start = time.perf_counter()
        images = work()
        torch.cuda.synchronize()
        found[name] = len(files) / (time.perf_counter() - start)
    errors = [
        np.abs(image.permute(1, 2, 0).cpu().numpy().astype(int) - decode(f).astype(int))
        for image, f in zip(images[:8], files, strict=False)
    ]
    return found | {
        "mean_difference_levels": float(np.mean([e.mean() for e in errors])),
        "max_difference_levels": int(max(e.max() for e in errors)),
    }


def show(figures: Figures, indent: str = "") -> None:
    """A table of names and values, nested by section."""
    for name, value in figures.items():
        if isinstance(value, dict):
            print(f"{indent}{name}")
            show(value, indent + "  ")
        else:
            shown = f"{value:.4g}" if isinstance(value, float) else value
            print(f"{indent}{name.replace('_', ' '):<{44 - len(indent)}} {shown}")


def measure(args: Any) -> Figures:
    device = "cpu" if args.dry else "cuda"
    start = time.perf_counter()
    found: Figures = {
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "device": "cpu" if args.dry else torch.cuda.get_device_name(),
        "equality": section_pixels(device),
        "cut": section_cut(device),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepared = prepared_set(args.model, folder, args.images)
        found["equality"]["rows"] = section_rows_equal(prepared, device, 2 if args.dry else 24)
        found["rows"] = section_rows(prepared, folder, device, args, False)
        if not args.dry:
            found["copy"] = section_copy(256 << 20)
            found["nvjpeg"] = section_nvjpeg(folder, 32)
            if "torchvision" not in found["nvjpeg"]:
                found["rows_with_nvjpeg"] = section_rows(prepared, folder, device, args, True)
    found["seconds"] = time.perf_counter() - start
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the figures to this file as well")
    parser.add_argument("--model", help="a model's folder (its tokenizer)")
    parser.add_argument("--seconds", type=float, default=12, help="of each measurement of rows")
    parser.add_argument("--step", type=float, default=0.25, help="seconds a row, of the steps")
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--dry", action="store_true")
    args = parser.parse_args()
    if args.dry:
        args.images, args.seconds = 8, 2.0
    figures = measure(args)
    show(figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
