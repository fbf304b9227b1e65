"""This machine as data: what ``brim hw`` shows and ``--json`` writes."""

from __future__ import annotations

import msgspec

from brim.hardware.attainable import DecodeFigures, DeviceFigures, StorageFigures

VERSION = 1


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """As :class:`brim.hardware.settings.Choice`."""

    name: str
    value: str
    why: str


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The links of one device, in words and figures."""

    pcie: str = ""
    """``Gen5 x16``; empty when not known."""
    pcie_gb_s: float | None = None
    """One direction, GB/s."""
    remark: str = ""
    nvlinks: int | None = None
    peers: dict[str, str] = {}
    """Other device's index → the way to it."""


class MachineDevice(msgspec.Struct, frozen=True, kw_only=True):
    index: int
    name: str
    uuid: str = ""
    capability: str = ""
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    known_as: str | None = None
    """The row of brim's table; None: unknown, and no peak is claimed."""
    identified: str
    """How, or why not."""
    peak_flops: dict[str, float] = {}
    bandwidth_bytes_s: float | None = None
    uncertain: list[str] = []
    settings: list[Setting] = []
    link: Link | None = None
    attainable: DeviceFigures | None = None
    """Measured on this machine; None: not yet."""


class Variable(msgspec.Struct, frozen=True, kw_only=True):
    """As :class:`brim.hardware.nccl.NcclVariable`."""

    name: str
    value: str
    kind: str
    origin: str
    effective: bool
    note: str = ""


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """As :class:`brim.hardware.storage.Storage`, with what was measured."""

    folder: str
    file_system: str
    source: str
    kind: str
    rotational: bool | None
    free_bytes: int
    total_bytes: int
    remark: str = ""
    measured: StorageFigures | None = None


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    version: int = VERSION
    driver: str = ""
    why_no_device: str = ""
    torch: str = ""
    """Installed version; empty when there is none."""
    devices: list[MachineDevice] = []
    machine_cores: int
    usable_cores: float
    why_cores: list[str] = []
    memory_bytes: int | None = None
    nccl: list[Variable] = []
    storage: Disk | None = None
    decode: DecodeFigures | None = None
    cpu: DeviceFigures | None = None
    """Matrix products on the CPU, measured where there is no device."""
    notes: list[str] = []
