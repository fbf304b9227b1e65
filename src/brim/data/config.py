"""The ``[data]`` table of a configuration."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from brim.data.decode import DecodePolicy
from brim.data.geometry import Vision
from brim.data.sources import SourceConfig
from brim.data.video import Sampling
from brim.errors import ConfigError

Overlong = Literal["shrink", "truncate", "drop"]

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class DataConfig:
    """What to train on, and how it becomes rows."""

    sources: tuple[SourceConfig, ...] = ()
    """Files, folders and datasets."""
    tokens_per_row: int = 8192
    """Length of a packed row."""
    rows_per_step: int = 8
    """Rows of one optimizer step, over all ranks and micro-steps."""
    seed: int = 0
    """Order of the samples."""
    overlong: Overlong = "shrink"
    """A sample longer than a row: shrink its images (then cut its text), cut its text, or drop."""
    min_pixels: int = 65_536
    max_pixels: int = 16_777_216
    """Area of an image after resizing."""
    video_fps: float = 2.0
    """Frames a second that are taken from a video file."""
    video_min_frames: int = 4
    video_max_frames: int = 768
    video_min_pixels: int = 4_096
    video_max_pixels: int = 25_165_824
    """Frames × height × width of a video after resizing; 2,048 pixels are a visual token."""
    max_file_pixels: int = 40_000_000
    """An image whose file has more is a bad sample."""
    rotate: bool = True
    """Apply the EXIF orientation."""
    dct_scaling: bool = False
    """Shrink large JPEGs while decoding: faster, off by half a grey level."""
    nvjpeg: bool = False
    """Decode and resize JPEGs on the CUDA device: fewer cores, and not the same pixels."""
    max_bad_share: float = 0.01
    max_bad: int = 1000
    """Stop when more samples than either are bad."""
    patch_bucket: int = 256
    """Vision rows of a packed row are padded to a multiple of this."""
    threads: int = 0
    """Loader threads of a rank. 0: found while running."""
    max_loader_bytes: int = 2 << 30
    """Shared memory for finished rows, per rank."""
    image_cache_bytes: int = 0
    """Disk for resized images where decoding is dear, per host. 0: none."""
    image_cache_folder: str = ""
    """Where they are kept: a local disk, or /dev/shm for memory. Empty: beside the data."""

    def __post_init__(self) -> None:
        positive = ("tokens_per_row", "rows_per_step", "patch_bucket", "max_loader_bytes")
        for name in (*positive, "video_max_frames"):
            if getattr(self, name) < 1:
                raise ConfigError(f"data.{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("threads", "image_cache_bytes", "seed", "video_min_frames"):
            if getattr(self, name) < 0:
                raise ConfigError(f"data.{name} is {getattr(self, name)}; it must be 0 or more")
        if self.threads > 64:
            raise ConfigError(f"data.threads is {self.threads}; more than 64 a rank never help")
        if self.overlong not in get_args(Overlong):
            known = ", ".join(get_args(Overlong))
            raise ConfigError(f"data.overlong is {self.overlong!r}; it must be one of {known}")
        if self.patch_bucket % 4:
            raise ConfigError(
                f"data.patch_bucket is {self.patch_bucket}; it must be divisible by 4"
            )
        if not 0 < self.video_fps < 1e4:
            raise ConfigError(f"data.video_fps is {self.video_fps}; it must be above 0")
        if not 0 <= self.max_bad_share <= 1:
            raise ConfigError(f"data.max_bad_share is {self.max_bad_share}; it is a share of one")

    @property
    def decode(self) -> DecodePolicy:
        return DecodePolicy(
            max_file_pixels=self.max_file_pixels,
            rotate=self.rotate,
            dct_scaling=self.dct_scaling,
        )

    @property
    def sampling(self) -> Sampling:
        return Sampling(
            fps=self.video_fps,
            min_frames=self.video_min_frames,
            max_frames=self.video_max_frames,
        )

    def vision(self, processor: Mapping[str, Any] | None = None) -> Vision:
        """The geometry, patch sizes from a model's ``preprocessor_config.json`` if given."""
        names = ("min_pixels", "max_pixels", "video_min_pixels", "video_max_pixels")
        limits = {name: getattr(self, name) for name in names}
        return Vision.of_processor(processor or {}, **limits)

    @classmethod
    def of_table(cls, table: Mapping[str, Any], folder: Path) -> DataConfig:
        """From a parsed ``[data]`` table; relative paths start at ``folder``."""
        values = dict(table)
        entries = values.pop("sources", [])
        if isinstance(entries, str | Mapping):
            entries = [entries]
        if not isinstance(entries, Sequence):
            raise ConfigError("data.sources must be a list of paths or tables")
        sources = tuple(_source(entry, folder) for entry in entries)
        if isinstance(values.get("image_cache_folder"), str):
            values["image_cache_folder"] = _anchored(values["image_cache_folder"], folder)
        return _build(cls, {**values, "sources": sources}, "data")


def _source(entry: object, folder: Path) -> SourceConfig:
    values = {"path": entry} if isinstance(entry, str) else entry
    if not isinstance(values, Mapping):
        raise ConfigError(f"data.sources holds {entry!r}; a path or a table was expected")
    config = _build(SourceConfig, dict(values), "data.sources")
    changed = {name: _anchored(getattr(config, name), folder) for name in ("path", "image_root")}
    return _build(SourceConfig, {**_as_dict(config), **changed}, "data.sources")


def _anchored(path: str, folder: Path) -> str:
    if not path or "://" in path or path.startswith("hf:"):
        return path
    return str(folder / path)


def _as_dict(config: Any) -> dict[str, Any]:
    return {f.name: getattr(config, f.name) for f in fields(config)}


def _build(cls: type[T], values: dict[str, Any], where: str) -> T:
    """``cls(**values)`` with errors that name the field and the nearest valid one."""
    known = {f.name: f for f in fields(cls)}  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {where}.{near[0]}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"{where}.{name} is no field", hint=hint)
        if isinstance(value, list):
            values[name] = tuple(value)
        kind = known[name].type
        wanted: Any = {"int": int, "float": (int, float), "bool": bool, "str": str}.get(str(kind))
        wrong_bool = isinstance(value, bool) and kind != "bool"
        if wanted and (wrong_bool or not isinstance(value, wanted)):
            raise ConfigError(f"{where}.{name} is {value!r}; it must be {kind}")
    return cls(**values)
