"""The table of accelerators, and which of them a device is.

A wrong peak makes every MFU wrong, and public tables are often wrong in the matching, not in the
figures: "L40S" contains "L4", "H800" contains neither SXM nor PCIe.  So a device is matched by

1. its PCI device id, checked against SM count and memory,
2. else (compute capability, SM count, memory size),
3. and only among several that fit so, by the driver's exact name; never by a part of a name.

What is left ambiguous or unknown has no peak.  brim says so and never guesses.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import msgspec

ROOT = Path("/")

# A marketed "80 GB" shows as 79.15 GiB and, with ECC stored inline, a "24 GB" as 22.5 GiB.
_SEEN_OF_MARKETED = (0.90, 1.02)


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table; units are in the file's head."""

    name: str
    arch: str
    compute_capability: str | None
    """``"9.0"``; None for a device without CUDA."""
    sm_count: int
    memory_gb: float
    memory_gib_seen: float | None = None
    bandwidth_gb_s: float
    dense_tflops: dict[str, float]
    nvlink_gb_s_bidir: float | None = None
    pcie_gen: int | None = None
    tdp_w: float | None = None
    mig_instances: int | None = None
    nvjpg_engines: int | None = None
    pci_device_ids: list[str] = []
    driver_names: list[str] = []
    measured_matmul_tflops: dict[str, float] | None = None
    """The best matrix product that others measured and published."""
    sources: list[str]
    uncertain: list[str] = []
    note: str = ""

    @property
    def capability(self) -> tuple[int, int] | None:
        if self.compute_capability is None:
            return None
        major, _, minor = self.compute_capability.partition(".")
        return int(major), int(minor)


class _Table(msgspec.Struct, frozen=True):
    gpus: list[Gpu]


@dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """Which device it is, and how that was decided; ``gpu`` is None when it is not known."""

    gpu: Gpu | None
    why: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Seen:
    name: str
    capability: tuple[int, int] | None
    sm_count: int | None
    memory_bytes: int | None
    pci_device_id: str | None


@functools.cache
def table() -> tuple[Gpu, ...]:
    """All accelerators that brim knows."""
    data = resources.files("brim.hardware").joinpath("gpus.json").read_bytes()
    return tuple(msgspec.json.decode(data, type=_Table).gpus)


def identify(
    *,
    name: str = "",
    capability: tuple[int, int] | None = None,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
    pci_device_id: str | int | None = None,
) -> Gpu | None:
    """The row of a device, or None when it is unknown or ambiguous.

    ``name``, ``capability``, ``sm_count`` and ``memory_bytes`` are what
    ``torch.cuda.get_device_properties`` shows; ``pci_device_id`` is the model (``"2335"``,
    ``0x2335`` or NVML's ``0x233510DE``), not the bus address: see :func:`pci_device_id`.
    """
    return match(
        name=name,
        capability=capability,
        sm_count=sm_count,
        memory_bytes=memory_bytes,
        pci_device_id=pci_device_id,
    ).gpu


def match(
    *,
    name: str = "",
    capability: tuple[int, int] | None = None,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
    pci_device_id: str | int | None = None,
) -> Match:
    """As :func:`identify`, with the reason."""
    seen = _Seen(
        name=name,
        capability=capability,
        sm_count=sm_count,
        memory_bytes=memory_bytes,
        pci_device_id=_device_id(pci_device_id),
    )
    by_id = [g for g in table() if seen.pci_device_id in g.pci_device_ids and _may_be(g, seen)]
    if by_id:
        return _choose(by_id, seen, f"PCI device id {seen.pci_device_id}")
    if sm_count is not None and memory_bytes is not None:
        fitting = [g for g in table() if _is_like(g, seen)]
        return _choose(fitting, seen, "compute capability, SM count and memory")
    named = [g for g in table() if name in g.driver_names]
    return _choose(named, seen, "the driver's exact name")


def peak_flops(gpu: Gpu, dtype: str, *, sm_count: int | None = None) -> float | None:
    """Dense peak in FLOP/s, or None where the device has no such units.

    ``dtype`` is ``fp64 fp32 tf32 fp16 bf16 fp8 fp4 int8`` or a torch name (``bfloat16``,
    ``torch.float8_e4m3fn``).  ``sm_count``: the SMs that the process sees; a MIG slice of 16 of
    132 SMs has 16/132 of the peak.
    """
    tflops = gpu.dense_tflops.get(short_dtype(dtype))
    if tflops is None:
        return None
    share = sm_count / gpu.sm_count if sm_count is not None and sm_count < gpu.sm_count else 1.0
    return tflops * 1e12 * share


def short_dtype(dtype: str) -> str:
    """``torch.bfloat16`` → ``bf16``; a name that is already short stays."""
    plain = dtype.removeprefix("torch.")
    if plain.startswith("float8"):
        return "fp8"
    return _SHORT.get(plain, plain)


_SHORT = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32",
    "float64": "fp64", "double": "fp64",
}  # fmt: skip


def pci_device_id(bus_address: str, *, root: Path = ROOT) -> str | None:
    """The PCI device id behind an address such as ``0000:18:00.0``, from sysfs; None if unreadable.

    torch shows only addresses (``pci_domain_id``, ``pci_bus_id``, ``pci_device_id``).  NVML's
    eight-digit domains are accepted.
    """
    domain, _, rest = bus_address.lower().partition(":")
    folder = root / "sys/bus/pci/devices" / f"{domain[-4:]}:{rest}"
    try:
        return _device_id((folder / "device").read_text().strip())
    except OSError:
        return None


def _device_id(value: str | int | None) -> str | None:
    """Four hexadecimal digits, lower case."""
    if value is None:
        return None
    if isinstance(value, int):
        # NVML joins device and vendor: 0x2335_10DE
        value = f"{value >> 16 if value > 0xFFFF else value:04x}"
    return value.lower().removeprefix("0x").zfill(4)


def _may_be(gpu: Gpu, seen: _Seen) -> bool:
    """Nothing seen contradicts ``gpu``; a partition has fewer SMs and less memory."""
    if seen.capability and gpu.capability and seen.capability != gpu.capability:
        return False
    if seen.sm_count is not None and seen.sm_count > gpu.sm_count:
        return False
    partition = seen.sm_count is not None and seen.sm_count < gpu.sm_count
    return partition or seen.memory_bytes is None or _fits_memory(gpu, seen.memory_bytes)


def _is_like(gpu: Gpu, seen: _Seen) -> bool:
    assert seen.sm_count is not None and seen.memory_bytes is not None
    if gpu.capability is not None and gpu.capability != seen.capability:
        return False
    # ROCm reports a gfx version as the capability; SM count, memory and the name decide there
    if gpu.capability is None and seen.name not in gpu.driver_names:
        return False
    return gpu.sm_count == seen.sm_count and _fits_memory(gpu, seen.memory_bytes)


def _fits_memory(gpu: Gpu, memory_bytes: int) -> bool:
    low, high = _SEEN_OF_MARKETED
    return low <= memory_bytes / (1 << 30) / gpu.memory_gb <= high


def _choose(candidates: list[Gpu], seen: _Seen, how: str) -> Match:
    if len(candidates) > 1:
        named = [g for g in candidates if seen.name in g.driver_names]
        if len(named) == 1:
            return Match(gpu=named[0], why=f"by {how}, then the driver's exact name")
    if len(candidates) == 1:
        return Match(gpu=candidates[0], why=f"by {how}")
    shown = seen.name or "this device"
    if not candidates:
        return Match(gpu=None, why=f"{shown} is not in brim's table, so no peak is known")
    names = " or ".join(g.name for g in candidates)
    return Match(gpu=None, why=f"{shown} may be {names}; brim does not guess which")
