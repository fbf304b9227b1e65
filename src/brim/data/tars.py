"""WebDataset: tar files whose members with one name up to the first dot are one sample.

``000.json`` holds the conversation (any dialect of :mod:`brim.data.chat`), ``000.jpg``,
``000.1.png`` … its pictures and ``000.mp4`` … its videos in the order of their names; or
``000.txt`` is a caption of the picture.  The tar is indexed once by its headers and then read by
offset, in any order.
"""

from __future__ import annotations

import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import xxhash

from brim.data.lines import loads
from brim.data.quarantine import BadSample, Where
from brim.errors import InputError

_PICTURES = frozenset({"jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif"})
_VIDEOS = frozenset({"mp4", "mov", "webm", "mkv", "avi", "mpg", "mpeg"})
CAPTION_PROMPT = "Describe the image."
VIDEO_PROMPT = "Describe the video."


@dataclass(slots=True)
class _Sample:
    key: str
    offset: int
    text: tuple[str, int, int] | None = None
    """(json or txt, offset, size)."""
    pictures: list[tuple[str, int, int]] = field(default_factory=list)
    """(member name, offset, size), sorted by name."""
    videos: list[tuple[str, int, int]] = field(default_factory=list)


class Tar:
    """The samples of one uncompressed tar file."""

    def __init__(self, path: Path, max_bytes: int = 64 << 20) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._digest = xxhash.xxh3_64()
        try:
            self._samples = self._index()
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except (tarfile.TarError, OSError) as error:
            raise InputError(f"{path}: no readable tar file: {error}") from None
        if not self._samples:
            raise InputError(f"{path}: holds no sample (no .json or .txt member)")

    def __len__(self) -> int:
        return len(self._samples)

    def __reduce__(self) -> tuple[type[Tar], tuple[Path, int]]:
        return type(self), (self.path, self.max_bytes)

    def where(self, index: int) -> Where:
        sample = self._samples[index]
        return Where(f"{self.path}/{sample.key}", None, sample.offset)

    def record(self, index: int) -> Any:
        """The conversation with its pictures as bytes.  Raises BadSample."""
        sample = self._samples[index]
        assert sample.text is not None
        kind, offset, size = sample.text
        text = self._read(offset, size)
        pictures = [self._read(at, length) for _, at, length in sample.pictures]
        videos = [self._read(at, length) for _, at, length in sample.videos]
        if kind == "txt":
            return _caption(text, pictures, videos)
        record = loads(text)
        for name, members in (("image", pictures), ("video", videos)):
            if isinstance(record, dict) and members:
                # names inside the record mean members of the tar; their bytes take their place
                record = {k: v for k, v in record.items() if k not in (name, f"{name}s")}
                record[f"{name}s"] = members
        return record

    def fingerprint(self) -> str:
        """Of every member's header: name, size, time and place."""
        return self._digest.hexdigest()

    def _index(self) -> list[_Sample]:
        samples: dict[str, _Sample] = {}
        with tarfile.open(self.path, "r:") as tar:
            for member in tar:
                self._digest.update(
                    f"{member.name}\0{member.size}\0{member.mtime}\0{member.offset_data}\0".encode(
                        errors="surrogateescape"
                    )
                )
                if member.isreg():
                    _add(samples, member)
        found = [s for s in samples.values() if s.text is not None]
        for sample in found:
            sample.pictures.sort()
            sample.videos.sort()
        return found

    def _read(self, offset: int, size: int) -> bytes:
        if size > self.max_bytes:
            raise BadSample(
                "tar.member", f"a member of {size} bytes; the limit is {self.max_bytes}"
            )
        data = os.pread(self._fd, size, offset)
        if len(data) < size:
            raise BadSample("tar.member", "the tar file ends inside this member")
        return data


def _add(samples: dict[str, _Sample], member: tarfile.TarInfo) -> None:
    path = PurePosixPath(member.name)
    base, _, extension = path.name.partition(".")
    extension = extension.lower()
    key = str(path.parent / base)
    sample = samples.setdefault(key, _Sample(key, member.offset))
    place = member.offset_data, member.size
    if extension in ("json", "txt"):
        # a conversation says more than a caption
        if sample.text is None or extension == "json":
            sample.text = (extension, *place)
    elif extension.rpartition(".")[2] in _PICTURES:
        sample.pictures.append((member.name, *place))
    elif extension.rpartition(".")[2] in _VIDEOS:
        sample.videos.append((member.name, *place))


def _caption(text: bytes, pictures: list[bytes], videos: list[bytes]) -> dict[str, Any]:
    try:
        caption = text.decode().strip()
    except UnicodeDecodeError:
        raise BadSample("json.utf8", "the caption is no UTF-8") from None
    prompt = VIDEO_PROMPT if videos else CAPTION_PROMPT
    user = "<image>" * len(pictures) + "<video>" * len(videos) + prompt
    return {
        "messages": [
            {"role": "user", "content": user},
            {"role": "assistant", "content": caption},
        ],
        "images": pictures,
        "videos": videos,
    }
