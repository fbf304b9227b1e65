"""The data layer against what it replaces, on one machine.

usage: python benchmarks/data.py --photos DIR --model FOLDER [--sections cpu,pack] [--seconds 8]
       [--torchvision PYTHON]

cpu     images a second of one core, file → pixels ready for the device: brim's decode and resize
        against the Pillow back end of transformers' processor and SPDL where present
torchvision  the same against the torchvision back end, in turn, and equality to it bit by bit;
        PYTHON has torch, torchvision and transformers
stages  where brim's milliseconds an image go, one thread, each stage alone
loader  both processes' CPU an image, and images a second, rows from disk to the trainer: brim's
        loader, pictures whole and cut, against the processor in a DataLoader worker and SPDL's
        pipeline in a process of its own
pack    waste and time of the packer on LLaVA-like lengths; against binpacking as ms-swift calls it,
        where it is installed
scan    records planned a second
wait    share of its time that a trainer of a given pace waits, from a steady and a spiky source
memory  resident memory of loader and trainer, and the slots that they share, over many rows
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.util
import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from PIL import Image
from slow_store import SlowStore
from torch.utils.data import DataLoader, Dataset
from torchvision_peer import compare

from brim.data.config import DataConfig
from brim.data.decode import decode
from brim.data.geometry import Vision, smart_resize
from brim.data.header import read_header
from brim.data.indices import write_patches
from brim.data.loader import Loader
from brim.data.packing import pack
from brim.data.prepare import Prepared, prepare
from brim.data.resize import load_image, resize
from brim.data.rows import lay
from brim.data.sources import SourceConfig

MAX_PIXELS = 1 << 20
WORDS = [
    "a",
    "the",
    "cat",
    "dog",
    "sits",
    "stands",
    "on",
    "under",
    "table",
    "house",
    "red",
    "blue",
    "with",
    "and",
    "near",
    "of",
    "man",
    "woman",
]


def rate(work: Callable[[Any], object], files: Sequence[Any], seconds: float) -> float:
    """Images a second of CPU time, one thread."""
    for file in files[:3]:
        work(file)
    start, count = time.process_time(), 0
    while time.process_time() - start < seconds:
        work(files[count % len(files)])
        count += 1
    return count / (time.process_time() - start)


VISION = Vision(max_pixels=MAX_PIXELS)
SLOT = np.zeros(2 * MAX_PIXELS * 3, np.uint8)  # what a loader's thread writes to


def brim_image(file: Path) -> np.ndarray:
    """As the loader leaves it where a CUDA device cuts the patches."""
    pixels = load_image(file.read_bytes(), VISION)
    lay(pixels, SLOT[: pixels.size])
    return pixels


def brim_patches(file: Path) -> np.ndarray:
    pixels = load_image(file.read_bytes(), VISION)
    write_patches(pixels, SLOT[: pixels.size].reshape(-1, 768), 16, 2)
    return pixels


def spdl_items(files: list[Path]) -> list[tuple[str, str | None]]:
    """(path, FFmpeg's filter to the size that the model takes) of each file."""
    from spdl.io import get_video_filter_desc

    items = []
    for file in files:
        height, width = smart_resize(*read_header(file.read_bytes()).upright(), VISION)
        scale = {"scale_width": width, "scale_height": height, "scale_mode": None}
        items.append((str(file), get_video_filter_desc(**scale)))
    return items


def spdl_image(item: tuple[str, str | None]) -> np.ndarray:
    from spdl.io import load_image as load
    from spdl.io import to_numpy

    found: np.ndarray = to_numpy(load(item[0], filter_desc=item[1]))
    return found


def processor() -> Any:
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    size = {"shortest_edge": 65_536, "longest_edge": MAX_PIXELS}
    half = [0.5] * 3
    return Qwen2VLImageProcessorPil(patch_size=16, size=size, image_mean=half, image_std=half)


def processed(file: Path, model: Any) -> torch.Tensor:
    with Image.open(file) as image:
        values: torch.Tensor = model(image.convert("RGB"), return_tensors="pt")["pixel_values"]
    return values


def section_cpu(files: list[Path], seconds: float) -> dict[str, float]:
    torch.set_num_threads(1)
    found = {
        "brim_images_s": rate(brim_image, files, seconds),
        "brim_with_patches_images_s": rate(brim_patches, files, seconds),
    }
    if importlib.util.find_spec("spdl"):
        found["spdl_images_s"] = rate(spdl_image, spdl_items(files), seconds)
    model = processor()
    found["pillow_processor_images_s"] = rate(lambda f: processed(f, model), files, seconds)
    sample = files[: min(20, len(files))]
    found["brim_bytes_per_image"] = float(np.mean([brim_image(f).nbytes for f in sample]))
    found["processor_bytes_per_image"] = float(
        np.mean([processed(f, model).nbytes for f in sample])
    )
    return found


def section_torchvision(
    python: str, folder: Path, files: list[Path], seconds: float, rounds: int
) -> dict[str, Any]:
    torch.set_num_threads(1)
    return compare(
        python, folder, files[:50], VISION, lambda s: rate(brim_image, files, s),
        seconds=seconds, rounds=rounds,
    )  # fmt: skip


def section_stages(files: list[Path], seconds: float) -> dict[str, float]:
    """CPU milliseconds an image of each stage, over the same files."""
    torch.set_num_threads(1)
    data = [file.read_bytes() for file in files]
    decoded = [decode(d) for d in data[:40]]
    targets = [smart_resize(*p.shape[:2], VISION) for p in decoded]
    pairs = list(zip(decoded, targets, strict=True))
    resized = [resize(pixels, *target) for pixels, target in pairs]

    def cut(pixels: np.ndarray) -> None:
        write_patches(pixels, SLOT[: pixels.size].reshape(-1, 768), 16, 2)

    works: dict[str, tuple[Callable[[Any], object], Sequence[Any]]] = {
        "read": (Path.read_bytes, files),
        "header": (read_header, data),
        "decode": (decode, data),
        "resize": (lambda pair: resize(pair[0], *pair[1]), pairs),
        "lay_whole": (lambda pixels: lay(pixels, SLOT[: pixels.size]), resized),
        "lay_as_patches": (cut, resized),
    }
    part = seconds / len(works)
    return {f"{name}_ms": 1e3 / rate(work, on, part) for name, (work, on) in works.items()}


class Processed(Dataset[torch.Tensor]):
    """What users of the processor do: decode and process in ``__getitem__``."""

    def __init__(self, files: list[Path]) -> None:
        self.files = files
        self.model: Any = None

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> torch.Tensor:
        if self.model is None:
            torch.set_num_threads(1)
            self.model = processor()
        return processed(self.files[index % len(self.files)], self.model)


def cpu_of(processes: list[psutil.Process]) -> float:
    times = [process.cpu_times() for process in processes]
    return sum(t.user + t.system for t in times)


def flow(rows: Iterator[int], pids: Callable[[], list[int]], seconds: float) -> dict[str, float]:
    """Images a second and CPU milliseconds an image of this process and its helpers."""
    next(rows)
    processes = [psutil.Process(), *map(psutil.Process, pids())]
    cpu, start, images = cpu_of(processes), time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        images += next(rows)
    return {
        "images_s": images / (time.perf_counter() - start),
        "cpu_ms_per_image": 1e3 * (cpu_of(processes) - cpu) / images,
    }


def brim_rows(loader: Loader) -> Iterator[int]:
    """Images of each row that is taken."""
    for row in loader:
        images = row.counts.images
        row.release()
        yield images


def section_loader(prepared: Prepared, files: list[Path], seconds: float) -> dict[str, Any]:
    found = {}
    for name, whole in (("brim", True), ("brim_with_patches", False)):
        with Loader(prepared, whole=whole) as loader:
            assert loader._process is not None
            pid = loader._process.pid
            found[name] = flow(brim_rows(loader), lambda pid=pid: [pid], seconds)
    if importlib.util.find_spec("spdl"):
        found["spdl"] = spdl_flow(files, seconds)
    workers = DataLoader(Processed(files), batch_size=8, collate_fn=torch.cat, num_workers=1)
    batches = iter(workers)
    found["pillow_processor_in_a_worker"] = flow((8 for _ in batches), children, seconds)
    del batches
    return found


def children() -> list[int]:
    return [process.pid for process in psutil.Process().children(recursive=True)]


def spdl_flow(files: list[Path], seconds: float) -> dict[str, float]:
    """SPDL's pipeline, two threads in a process of its own; pixels only, no text and no packing."""
    from spdl.pipeline import PipelineBuilder, run_pipeline_in_subprocess

    items = spdl_items(files)
    config = (
        PipelineBuilder()
        .add_source(items * (1 + 20_000 // len(items)))
        .pipe(spdl_image, concurrency=2)
        .aggregate(8)
        .add_sink(2)
        .get_config()
    )
    batches = iter(run_pipeline_in_subprocess(config, num_threads=2))
    found = flow((len(batch) for batch in batches), children, seconds)
    del batches
    return found


def lengths(count: int) -> np.ndarray:
    """LLaVA-like: 85 % with an image of 300 to 1300 pixels a side, texts log-normal."""
    rng = np.random.default_rng(0)
    sides = rng.integers(300, 1300, (2, count)) // 32
    visual = np.where(rng.random(count) < 0.85, sides.prod(axis=0), 0)
    return np.minimum(visual + rng.lognormal(5.3, 0.7, count).astype(np.int64) + 30, 8192)


def section_pack(count: int) -> dict[str, Any]:
    sizes = lengths(count)
    order = np.random.default_rng(1).permutation(count)
    start = time.process_time()
    rows = pack(sizes, order, 8192)
    found: dict[str, Any] = {
        "samples": count,
        "brim": {
            "cpu_s": time.process_time() - start,
            "waste": float(1 - sizes.sum() / (len(rows) * 8192)),
        },
    }
    try:
        import binpacking
    except ImportError:
        return found
    part, window = order[:20_000], 1000
    start, used = time.process_time(), 0
    carried: list[tuple[int, int]] = []
    for at in range(0, len(part), window):
        # ms-swift: windows of 1,000 (sample, length); the last bin goes on to the next window
        ids = part[at : at + window]
        waiting = [*carried, *zip(ids.tolist(), sizes[ids].tolist(), strict=True)]
        bins = binpacking.to_constant_volume(waiting, 8192, weight_pos=1)
        last = at + window >= len(part)
        used += len(bins) if last else len(bins) - 1
        carried = [] if last else bins[-1]
    spent = time.process_time() - start
    found["binpacking"] = {
        "samples": len(part),
        "cpu_s": spent,
        "cpu_s_per_million": spent * 1e6 / len(part),
        "waste": float(1 - sizes[part].sum() / (used * 8192)),
    }
    return found


def write_set(folder: Path, photos: Path, count: int) -> Path:
    rng = random.Random(0)
    names = sorted(p.name for p in photos.iterdir() if p.suffix.lower() in (".jpg", ".jpeg"))
    path = folder / "train.jsonl"
    with path.open("w") as f:
        for _ in range(count):
            question = " ".join(rng.choices(WORDS, k=rng.randint(5, 25)))
            answer = " ".join(rng.choices(WORDS, k=int(rng.lognormvariate(4.2, 0.8)) + 1))
            turns = [
                {"from": "human", "value": f"<image>\n{question}?"},
                {"from": "gpt", "value": answer},
            ]
            record = {"image": rng.choice(names), "conversations": turns}
            f.write(json.dumps(record) + "\n")
    return path


def planned(
    folder: Path, photos: Path, model: str, count: int, tokens_per_row: int
) -> tuple[Prepared, float]:
    source = SourceConfig(path=str(write_set(folder, photos, count)), image_root=str(photos))
    config = DataConfig(sources=(source,), max_pixels=MAX_PIXELS, tokens_per_row=tokens_per_row)
    prepare(config, model, cache=folder / "warm")  # imports and page cache
    start = time.perf_counter()
    prepared = prepare(config, model, cache=folder / "cold")
    return prepared, count / (time.perf_counter() - start)


def section_wait(prepared: Prepared, step_s: float, seconds: float) -> dict[str, Any]:
    """A trainer that takes a row every ``step_s``: its wait from a steady and a spiky source."""
    spiky = [
        dataclasses.replace(source, store=SlowStore(root=source.store.root))
        for source in prepared.sources
    ]
    return {
        "step_s": step_s,
        "steady": waits(prepared, step_s, [(0, 5), (5, 5 + seconds)]),
        "spiky": waits(
            dataclasses.replace(prepared, sources=spiky), step_s, [(0, 20), (20, 20 + seconds)]
        ),
    }


def waits(prepared: Prepared, step_s: float, spans: list[tuple[float, float]]) -> dict[str, float]:
    """Share of its time that the trainer waits in each span of seconds."""
    shares = {}
    with Loader(prepared) as loader:
        next(loader).release()
        begin = time.perf_counter()
        for first, last in spans:
            start, waited = time.perf_counter(), loader.wait_s
            while time.perf_counter() - begin < last:
                time.sleep(step_s)
                next(loader).release()
            share = (loader.wait_s - waited) / (time.perf_counter() - start)
            shares[f"from_{first:g}_to_{last:g}_s"] = share
    return shares


def section_memory(prepared: Prepared, rows: int) -> dict[str, Any]:
    """MiB of memory that each process has for itself, and of the slots that they share."""
    points, seen = {rows // 20, rows // 2, rows}, {}
    with Loader(prepared) as loader:
        for number in range(1, rows + 1):
            next(loader).release()
            if number in points:
                assert loader._process is not None
                seen[f"row_{number}"] = {
                    "loader_mib": own_mib(loader._process.pid),
                    "trainer_mib": own_mib(os.getpid()),
                    "shared_mib": os.fstat(loader.ring.fd).st_blocks * 512 / 2**20,
                }
    return seen


def own_mib(pid: int) -> float:
    info = psutil.Process(pid).memory_info()
    return (info.rss - info.shared) / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--photos", type=Path, required=True, help="a folder of JPEG photographs")
    parser.add_argument("--model", required=True, help="a model's folder (its tokenizer)")
    parser.add_argument("--sections", default="cpu,stages,pack,scan,loader,wait,memory")
    parser.add_argument("--seconds", type=float, default=8, help="of each measurement")
    parser.add_argument("--samples", type=int, default=20_000)
    parser.add_argument("--tokens-per-row", type=int, default=8192)
    parser.add_argument("--pack", type=int, default=1_000_000)
    parser.add_argument("--step", type=float, default=0.2, help="seconds a row, of wait")
    parser.add_argument("--rows", type=int, default=400, help="of the memory section")
    parser.add_argument("--torchvision", metavar="PYTHON", help="one that has torchvision")
    parser.add_argument("--rounds", type=int, default=5, help="of the torchvision section")
    args = parser.parse_args()
    wanted = set(args.sections.split(","))
    files = sorted(p for p in args.photos.iterdir() if p.suffix.lower() in (".jpg", ".jpeg"))
    show("machine", {"cores": len(os.sched_getaffinity(0)), "photos": len(files)})
    if "cpu" in wanted:
        show("cpu", section_cpu(files, args.seconds))
    if "stages" in wanted:
        show("stages", section_stages(files, args.seconds))
    if args.torchvision:
        show(
            "torchvision",
            section_torchvision(args.torchvision, args.photos, files, args.seconds, args.rounds),
        )
    if "pack" in wanted:
        show("pack", section_pack(args.pack))
    if wanted & {"loader", "wait", "scan", "memory"}:
        with tempfile.TemporaryDirectory() as folder:
            prepared, speed = planned(
                Path(folder), args.photos, args.model, args.samples, args.tokens_per_row
            )
            show("scan", {"records_s": speed, "samples": args.samples})
            if "loader" in wanted:
                show("loader", section_loader(prepared, files, args.seconds))
            if "wait" in wanted:
                show("wait", section_wait(prepared, args.step, args.seconds))
            if "memory" in wanted:
                show("memory", section_memory(prepared, args.rows))


def show(name: str, figures: dict[str, Any]) -> None:
    """A line of JSON a section, as soon as it is known."""
    print(json.dumps({name: figures}), flush=True)


if __name__ == "__main__":
    main()
