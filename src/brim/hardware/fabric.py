"""The host's ways to other hosts, as Linux shows them: network interfaces, InfiniBand and RoCE."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """One network interface other than ``lo``."""

    name: str
    up: bool
    gb_s: float | None
    """Speed of the link in Gbit/s; None where the driver does not say (most virtual ones)."""
    physical: bool
    """False for bridges, containers' ends, tunnels."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Port:
    """One port of an RDMA adapter."""

    name: str
    """``mlx5_0:1``, as ``NCCL_IB_HCA`` names it."""
    active: bool
    gb_s: float | None
    """Gbit/s."""
    infiniband: bool
    """False: RoCE, RDMA over Ethernet."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Fabric:
    interfaces: tuple[Interface, ...] = ()
    ports: tuple[Port, ...] = ()

    @property
    def rdma(self) -> list[Port]:
        """Ports that could carry traffic now."""
        return [port for port in self.ports if port.active]


def fabric(*, root: Path = ROOT) -> Fabric:
    """What is under ``/sys/class/net`` and ``/sys/class/infiniband``; empty where neither is."""
    return Fabric(
        interfaces=tuple(
            _interface(path) for path in _entries(root / "sys/class/net") if path.name != "lo"
        ),
        ports=tuple(
            _port(hca.name, port)
            for hca in _entries(root / "sys/class/infiniband")
            for port in _entries(hca / "ports")
        ),
    )


def _interface(path: Path) -> Interface:
    speed = _text(path / "speed")
    mb_s = int(speed) if speed.isdigit() else 0  # -1 and errors: not known
    return Interface(
        name=path.name,
        up=_text(path / "operstate") == "up",
        gb_s=mb_s / 1000 if mb_s > 0 else None,
        physical=(path / "device").exists(),
    )


def _port(hca: str, path: Path) -> Port:
    rate = re.match(r"[\d.]+", _text(path / "rate"))  # "200 Gb/sec (4X HDR)"
    return Port(
        name=f"{hca}:{path.name}",
        active="ACTIVE" in _text(path / "state"),  # "4: ACTIVE"
        gb_s=float(rate[0]) if rate else None,
        infiniband=_text(path / "link_layer") == "InfiniBand",
    )


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def _text(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(errors="replace").strip()
    return ""
