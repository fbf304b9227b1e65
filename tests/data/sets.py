"""Small data sets on disk, and plans from drawn sizes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from tests.data.pictures import jpeg

from brim.data.cost import Cost
from brim.data.plan import Plan
from brim.data.samples import Samples


def write_set(folder: Path, count: int, *, images: int = 1, words: int = 6) -> Path:
    """``train.jsonl`` with ``count`` samples over 5 small photographs; returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    for n in range(5):
        (folder / f"{n}.jpg").write_bytes(jpeg(64 + 48 * n, 320 - 32 * n, seed=n))
    lines = []
    for n in range(count):
        text = "<image>" * images + f"What is picture {n}? " + "Say it well. " * (n % words)
        answer = f"It is number {n}." + " Really." * (n % (words + 1))
        record: dict[str, Any] = {
            "messages": [
                {"role": "user", "content": text},
                {"role": "assistant", "content": answer},
            ],
            "images": [f"{(n + k) % 5}.jpg" for k in range(images)],
        }
        lines.append(json.dumps(record) + "\n")
    path = folder / "train.jsonl"
    path.write_text("".join(lines))
    return path


def llava_lengths(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(tokens, patches) of samples like LLaVA's: 85 % with an image, texts log-normal."""
    rng = np.random.default_rng(seed)
    sides = rng.integers(300, 1300, (2, count)) // 32
    visual = np.where(rng.random(count) < 0.85, sides.prod(axis=0), 0)
    text = (rng.lognormal(5.3, 0.7, count) + 30).astype(np.int64)
    return np.minimum(visual + text, 8192), visual * 4


def samples_of(length: np.ndarray, patches: np.ndarray | None = None) -> Samples:
    """Samples of given sizes, all of one source, each with at most one image."""
    length = np.asarray(length, np.int64)
    patches = np.zeros_like(length) if patches is None else np.asarray(patches, np.int64)
    scored = length // 4
    return Samples(
        source=np.zeros_like(length),
        record=np.arange(len(length)),
        length=length,
        scored=scored,
        images=(patches > 0).astype(np.int64),
        patches=patches,
        patch_squares=patches**2,
        max_pixels=np.zeros_like(length),
        cost=Cost().of(length, length**2, scored, patches, patches**2),
    )


def llava_plan(count: int = 20_000, seed: int = 0, rows_per_step: int = 8) -> Plan:
    return Plan(samples_of(*llava_lengths(count)), [1.0], 8192, rows_per_step, seed)
