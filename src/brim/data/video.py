"""Video files: which frames, when, and their pixels.

Frames are chosen as ``Qwen3VLVideoProcessor.sample_frames`` chooses them: ``fps`` a second, between
a smallest and a largest number, evenly from the first to the last.  The plan reads the container's
header only, and decoding finds a frame by its time, n / fps, so both agree on any file; where the
frame rate is constant these are the frames that the reference finds by counting.

torchcodec decodes (the extra ``video``).  Only containers that are common are opened: among the
others are playlists, which name further files and hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from brim.data.chat import Clip, Conversation, Part, Turn, Video, name_of
from brim.data.decode import Pixels
from brim.data.quarantine import BadSample
from brim.data.store import Store
from brim.errors import InputError, MissingExtra

Source = str | bytes | BinaryIO
"""A local path, the bytes of a file, or a stream that can seek."""

_AT_ONCE = 16
"""Frames that are decoded before they are resized: 100 MB at 1080 lines."""
_CONTAINERS = re.compile(
    rb"....(ftyp|moov|mdat|wide|free|skip)"  # MP4, MOV
    rb"|\x1a\x45\xdf\xa3"  # Matroska, WebM
    rb"|RIFF....AVI "
    rb"|FLV\x01"
    rb"|\0\0\x01\xba"  # MPEG program stream
    rb"|G.{187}G",  # MPEG transport stream
    re.DOTALL,
)
_NO_FFMPEG = "Could not load libtorchcodec"
_NO_RATE = 24.0  # the reference's guess for a file that tells none


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """How many frames of a video file are taken; the defaults are Qwen3-VL's."""

    fps: float = 2.0
    min_frames: int = 4
    max_frames: int = 768


def sample_frames(total: int, fps: float, wanted_fps: float, limits: Sampling) -> NDArray[np.int64]:
    """Numbers of the frames to take of ``total`` at ``fps`` a second."""
    count = int(total / fps * wanted_fps)
    count = min(max(count, limits.min_frames), limits.max_frames, total)
    return np.linspace(0, total - 1, count).round().astype(np.int64)


def has_files(conversation: Conversation) -> bool:
    """Is there a video file whose header must be read?"""
    return any(isinstance(p, Video) and p.file is not None for p in conversation.pictures())


def chosen(conversation: Conversation, store: Store, sampling: Sampling) -> Conversation:
    """The conversation with the frames of its video files chosen.  Raises BadSample."""
    if not has_files(conversation):
        return conversation

    def part(found: Part) -> Part:
        if not isinstance(found, Video) or found.file is None:
            return found
        try:
            clip = read_clip(store.video(found.file), found.fps, sampling)
        except BadSample as bad:
            bad.image = name_of(found)
            raise
        return replace(found, clip=clip)

    return Conversation(
        tuple(Turn(turn.role, tuple(map(part, turn.parts))) for turn in conversation.turns)
    )


def read_clip(source: Source, wanted_fps: float | None, sampling: Sampling) -> Clip:
    """The frames to take, from a file's header.  Raises BadSample."""
    about = _open(source).metadata
    total, fps = about.num_frames, about.average_fps
    height, width = about.height, about.width
    if not total or not height or not width:
        raise BadSample("video.unreadable", "its header tells no size or no number of frames")
    fps = float(fps) if fps and np.isfinite(fps) and fps > 0 else _NO_RATE
    frames = sample_frames(int(total), fps, wanted_fps or sampling.fps, sampling)
    if len(frames) < 2:
        raise BadSample("video.too-short", f"a video of {total} frame; at least 2 are needed")
    return Clip(tuple(frames.tolist()), fps, int(height), int(width))


def decoded(source: Source, clip: Clip) -> Iterator[list[Pixels]]:
    """The frames of ``clip``, a few at a time, uint8 [height, width, 3].  Raises BadSample."""
    decoder = _open(source)
    for at in range(0, len(clip.frames), _AT_ONCE):
        yield _frames(decoder, clip, clip.frames[at : at + _AT_ONCE])


def _frames(decoder: Any, clip: Clip, numbers: Sequence[int]) -> list[Pixels]:
    try:
        pixels: NDArray[np.uint8] = decoder.get_frames_at(list(numbers)).data.numpy()
    except (RuntimeError, IndexError, ValueError) as error:
        raise BadSample("video.damaged", _first_line(error)) from None
    if pixels.shape[1:] != (clip.height, clip.width, 3):
        found = f"{pixels.shape[2]}×{pixels.shape[1]}"
        raise BadSample(
            "video.damaged", f"frames of {found} pixels; its header says {clip.width}×{clip.height}"
        )
    return list(pixels)


def _open(source: Source) -> Any:
    if not _CONTAINERS.match(_head(source)):
        raise BadSample("video.container", "no video of the formats MP4, MOV, WebM, MKV, AVI, MPEG")
    decoder = _decoder()
    try:
        return decoder(
            source, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate"
        )
    except (RuntimeError, ValueError) as error:
        if _NO_FFMPEG in str(error):
            raise _no_ffmpeg() from None
        raise BadSample("video.unreadable", _first_line(error)) from None


def _head(source: Source, size: int = 256) -> bytes:
    if isinstance(source, bytes):
        return source[:size]
    if isinstance(source, str):
        with Path(source).open("rb") as f:
            return f.read(size)
    head = source.read(size)
    source.seek(0)
    return head


@cache
def _decoder() -> Any:
    try:
        from torchcodec.decoders import VideoDecoder
    except ImportError:
        raise MissingExtra("a video file", package="torchcodec", extra="video") from None
    except (RuntimeError, OSError):  # it loads its libraries, and before 0.16 FFmpeg's
        raise _no_ffmpeg() from None
    return VideoDecoder


def _no_ffmpeg() -> InputError:
    return InputError(
        "a video file needs FFmpeg's shared libraries, which torchcodec cannot load",
        hint="install FFmpeg 4 to 8 (apt install ffmpeg) and the torchcodec that fits your torch",
    )


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200] or type(error).__name__
