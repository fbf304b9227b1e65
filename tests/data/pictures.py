"""Pictures made here: deterministic, photographic enough to exercise codecs, any format."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image


def picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """uint8 [height, width, 3]: smooth gradients, edges and some noise."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 255 / max(width, 2), y * 255 / max(height, 2), (x + y) % 256], axis=2)
    base[height // 4 : height // 2, width // 4 : width // 2] = rng.integers(0, 256, 3)
    return np.clip(base + rng.normal(0, 8, base.shape), 0, 255).astype(np.uint8)


def encode(pixels: np.ndarray, form: str = "JPEG", **options: Any) -> bytes:
    """``pixels`` as a file of the format."""
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, form, **options)
    return out.getvalue()


def jpeg(height: int, width: int, seed: int = 0, **options: Any) -> bytes:
    return encode(picture(height, width, seed), "JPEG", **{"quality": 90, **options})
