"""What this machine reached when it was measured: the figures beside the peaks.

The best matrix product reaches 67 to 87 % of a peak, so an account against the peak alone asks
for the impossible.  ``brim hw --measure`` stores what it found in the user's cache folder; reports
show both figures.  A figure belongs to a device, its driver and the version of torch; one measured
under another driver is still returned, and says so in its ``driver``.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from brim.files import write_atomic
from brim.hardware.gpus import short_dtype

VERSION = 1


class DeviceFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One device model under one driver."""

    name: str
    """As the driver names it."""
    sm_count: int | None = None
    driver: str = ""
    torch: str = ""
    measured_at: float = 0.0
    """Unix time."""
    matmul_flops: dict[str, float] = {}
    """``bf16 fp16 fp32 tf32 fp8`` → FLOP/s of the best square product, on random data."""
    copy_bytes_s: dict[str, float] = {}
    """``h2d-pinned h2d-pageable d2h-pinned d2d`` → bytes/s; ``d2d`` counts read and write."""


class DecodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One core of this host."""

    images_s: dict[str, float] = {}
    """Library → images of one megapixel per second on one core."""
    cores: float = 0.0
    """Usable cores when it was measured."""
    measured_at: float = 0.0


class StorageFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Files of one folder, read past the page cache."""

    folder: str
    files: int
    bytes: int
    read_bytes_s: float
    """One reader, file after file."""
    read_bytes_s_8: float | None = None
    """Eight readers at once."""
    first_byte_ms: float
    """Median of open and first read of 4 KiB."""
    cached: bool
    """The kernel kept pages although it was asked to drop them: the figures are too good."""
    measured_at: float = 0.0


class Store(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    devices: list[DeviceFigures] = []
    decode: DecodeFigures | None = None
    storage: list[StorageFigures] = []

    def device(self, name: str, sm_count: int | None = None) -> DeviceFigures | None:
        """The newest figures of a device, or None when it was never measured here."""
        fitting = [
            d
            for d in self.devices
            if d.name == name and (sm_count is None or d.sm_count in (None, sm_count))
        ]
        return max(fitting, key=lambda d: d.measured_at, default=None)

    def matmul_flops(self, name: str, dtype: str, sm_count: int | None = None) -> float | None:
        """FLOP/s that a matrix product of ``dtype`` reached on the device; None: not measured."""
        device = self.device(name, sm_count)
        return None if device is None else device.matmul_flops.get(short_dtype(dtype))

    def with_device(self, figures: DeviceFigures) -> Store:
        """Figures of the same device and driver are replaced."""
        key = (figures.name, figures.sm_count, figures.driver)
        others = [d for d in self.devices if (d.name, d.sm_count, d.driver) != key]
        return msgspec.structs.replace(self, devices=[*others, figures])

    def with_storage(self, figures: StorageFigures) -> Store:
        others = [s for s in self.storage if s.folder != figures.folder]
        return msgspec.structs.replace(self, storage=[*others, figures])


def path() -> Path:
    """``$XDG_CACHE_HOME/brim/attainable.json``, by default below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    cache = Path(base) if base.startswith("/") else Path.home() / ".cache"
    return cache / "brim" / "attainable.json"


def load(file: Path | None = None) -> Store:
    """The stored figures; an absent or damaged file is an empty store, since it is a cache."""
    try:
        return msgspec.json.decode((file or path()).read_bytes(), type=Store)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return Store()


def save(store: Store, file: Path | None = None) -> Path:
    """Replace the file at once; returns where it is.  Raises OSError when it cannot be written."""
    target = file or path()
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, msgspec.json.format(msgspec.json.encode(store), indent=2) + b"\n")
    return target
