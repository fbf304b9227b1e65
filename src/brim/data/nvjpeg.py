"""JPEGs decoded and resized by a CUDA device: a choice for hosts with few cores, never the default.

nvJPEG's pixels are not libjpeg's (it blends chroma otherwise), and resizing in float and rounding
is not resizing in uint8.  How far off they are is measured on the first pictures of a run and
written to its records.

It runs in the loader's process, so the trainer loses no time to it and a bad picture is dealt with
as ever: what the device refuses, or would not notice to be damaged, goes to the CPU's decoder.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.nn.functional import interpolate

from brim.data.decode import DecodePolicy, Pixels, check_size, decode
from brim.data.header import Header, read_header
from brim.data.resize import resize
from brim.errors import ConfigError, MissingExtra

Decode = Callable[[bytes], torch.Tensor]
"""Bytes of a JPEG → uint8 [3, height, width] on the device; RuntimeError for what it refuses."""

_COMPARED = 4
_END = b"\xff\xd9"


def require() -> int:
    """The CUDA device of this process.  Raises BrimError where nvJPEG cannot be used."""
    if not torch.cuda.is_available():
        raise ConfigError("data.nvjpeg is true, but there is no CUDA device")
    if not any(importlib.util.find_spec(name) for name in ("torchcodec", "torchvision")):
        raise MissingExtra("data.nvjpeg", package="torchvision", extra="nvjpeg")
    return torch.cuda.current_device()


class GpuJpegs:
    """Decodes and resizes on one device.  Thread-safe; cheap to send to another process."""

    def __init__(self, device: torch.device, decode: Decode | None = None) -> None:
        self.device = device
        self._given = decode
        self._lock = threading.Lock()
        self._errors: list[float] = []

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.device, self._given)

    @property
    def error(self) -> float | None:
        """Mean difference from the exact pixels, in grey levels of 255, over the first pictures;
        None before there was one."""
        return float(np.mean(self._errors)) if self._errors else None

    def load(self, data: bytes, target: tuple[int, int], policy: DecodePolicy) -> Pixels | None:
        """RGB pixels of the size ``target`` (height, width); None: the CPU has to decide.

        Raises BadSample for a picture that is too large.
        """
        header = read_header(data)
        check_size(header, policy)
        if not _suits(data, header, policy):
            return None
        try:
            image = self._decode(data)
        except RuntimeError:
            return None
        if image.shape != (3, header.height, header.width):
            return None
        pixels: Pixels = _resized(image, target).cpu().numpy().transpose(1, 2, 0)
        self._compare(pixels, data, target, policy)
        return pixels

    @cached_property
    def _decode(self) -> Decode:
        return self._given or nvjpeg(self.device)

    def _compare(
        self, pixels: Pixels, data: bytes, target: tuple[int, int], policy: DecodePolicy
    ) -> None:
        with self._lock:
            if len(self._errors) >= _COMPARED:
                return
            exact = resize(decode(data, policy), *target)
            difference = np.abs(pixels.astype(np.int16) - exact.astype(np.int16))
            self._errors.append(float(difference.mean()))


def nvjpeg(device: torch.device) -> Decode:
    """nvJPEG through torchcodec (from 0.16 on) or torchvision, whichever is there."""
    try:
        from torchcodec.decoders import decode_jpeg

        return lambda data: decode_jpeg(data, mode="RGB", device=device)
    except (ImportError, RuntimeError):  # too old, or for another torch
        from torchvision.io import ImageReadMode, decode_jpeg

    def decode_one(data: bytes) -> torch.Tensor:
        encoded = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        image: torch.Tensor = decode_jpeg(encoded, mode=ImageReadMode.RGB, device=device)
        return image

    return decode_one


def _suits(data: bytes, header: Header, policy: DecodePolicy) -> bool:
    """A whole, upright colour JPEG: of a cut one nvJPEG may return half without a word."""
    upright = header.orientation == 1 or not policy.rotate
    whole = data.rstrip(b"\0")[-2:] == _END
    return header.format == "JPEG" and header.channels == 3 and upright and whole


def _resized(image: torch.Tensor, target: tuple[int, int]) -> torch.Tensor:
    if tuple(image.shape[1:]) == target:
        return image
    # CUDA has no uint8 kernel: float, and rounded once
    out = interpolate(image[None].float(), size=target, mode="bicubic", antialias=True)
    return out[0].round_().clamp_(0, 255).to(torch.uint8)
