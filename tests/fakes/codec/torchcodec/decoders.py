"""``VideoDecoder`` for files that :func:`film` writes: the frames lie in them as they are.

What is called, and how often, is what brim calls of the real one; what it does not do (a frame that
is not there, a file that is none) raises what the real one raises.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch

DEADLY = 66_666
"""A film whose header says that it is so wide ends the process that opens it."""
MAGIC = b"\0\0\0\x10ftypfake"


def film(frames: np.ndarray, fps: float, **about: Any) -> bytes:
    """uint8 [n, height, width, 3] as a file; ``about`` overrides what its header says."""
    buffer = io.BytesIO()
    header = {"num_frames": len(frames), "average_fps": fps, "height": frames.shape[1]}
    header |= {"width": frames.shape[2]} | about
    np.savez(buffer, frames=frames, **{k: np.array(v) for k, v in header.items() if v is not None})
    return MAGIC + buffer.getvalue()


class VideoDecoder:
    opened: ClassVar[list[str]] = []

    def __init__(
        self,
        source: Any,
        *,
        dimension_order: str,
        num_ffmpeg_threads: int,
        seek_mode: str,
    ) -> None:
        assert (dimension_order, num_ffmpeg_threads, seek_mode) == ("NHWC", 1, "approximate")
        self.opened.append(type(source).__name__)
        data = source if isinstance(source, bytes) else None
        if data is None:
            data = Path(source).read_bytes() if isinstance(source, str) else source.read(1 << 30)
        try:
            file = np.load(io.BytesIO(data[len(MAGIC) :]))
            self._frames = file["frames"]
        except (ValueError, OSError, EOFError):
            raise RuntimeError(
                "Could not open input file: Invalid data found\nmore words"
            ) from None
        known = {name: file[name].item() for name in file.files if name != "frames"}
        names = ("num_frames", "average_fps", "height", "width")
        if known.get("width") == DEADLY:
            os._exit(139)  # as a crash does, and without a core
        self.metadata = SimpleNamespace(**{name: known.get(name) for name in names})

    def get_frames_at(self, indices: list[int]) -> Any:
        if max(indices) >= len(self._frames):
            raise RuntimeError(
                "Requested next frame while there are no more frames left to decode."
            )
        return SimpleNamespace(data=torch.from_numpy(self._frames[indices]))
