"""What NCCL was told, against what the machine has and does: evidence for exposed collectives.

None of these is a cause of its own.  A variable that forces the slow way explains *why*
collectives are exposed, where they are: it stands beside the measured time, and as a note where
no time was lost.  NCCL's classes and defaults are those of :mod:`brim.hardware.nccl`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from brim.diagnose.live.clues import Clue
from brim.diagnose.live.evidence import Evidence
from brim.hardware.fabric import Fabric, Interface
from brim.hardware.nccl import Definition, NcclVariable, described
from brim.record.devices import HostSample
from brim.record.run import Run
from brim.record.steps import Header
from brim.units import size

BUSY_BYTES_S = 50e6
"""Traffic over TCP from which on it is no management traffic any more."""
IDLE_SHARE = 0.01
"""RDMA traffic of the TCP traffic, under which the RDMA adapters carry nothing of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """What the rules look at; pure data."""

    variables: Sequence[NcclVariable]
    fabric: Fabric
    ranks: int
    local_ranks: int
    cores: float
    """Cores that the job may use on this host."""
    joined: bool | None = None
    """Devices of this host reach each other over NVLink or PCIe; None where not known."""
    tcp_bytes_s: float | None = None
    """Sent over network interfaces, mean of the window."""
    rdma_bytes_s: float | None = None
    effective: Mapping[str, str] = field(init=False)

    def __post_init__(self) -> None:
        values = {v.name.removeprefix("NCCL_"): v.value.strip() for v in self.variables
                  if v.effective}  # fmt: skip
        object.__setattr__(self, "effective", values)

    @property
    def hosts(self) -> int:
        return max(1, self.ranks // max(1, self.local_ranks))


def job(run: Run, evidences: Sequence[Evidence], samples: Sequence[HostSample]) -> Job | None:
    """None for a job of one rank, and for one that has no CUDA device: NCCL is not in it."""
    first = evidences[0].process if evidences else None
    if first is None or first.header.world < 2 or first.device is None:
        return None
    host = run.info.host
    files = msgspec.convert(host.get("nccl", []), list[Definition])
    environment = _environment(first.header)
    return Job(
        variables=described([*environment, *files]),
        fabric=msgspec.convert(host.get("fabric", {}), Fabric),
        ranks=first.header.world,
        local_ranks=int(first.header.env.get("LOCAL_WORLD_SIZE", len(evidences))),
        cores=float(host.get("usable") or first.header.cores or 1),
        joined=host.get("devices_joined"),
        tcp_bytes_s=_mean([s.net_tx_bytes_s for s in samples]),
        rdma_bytes_s=_mean([s.rdma_tx_bytes_s for s in samples]),
    )


def _environment(header: Header) -> list[Definition]:
    return [(n, v, "environment") for n, v in header.env.items() if n.startswith("NCCL_")]


def _mean(values: Sequence[float | None]) -> float | None:
    known = [v for v in values if v is not None]
    return statistics.fmean(known) if known else None


def clues(seen: Job) -> list[Clue]:
    """Evidence without seconds of its own, for the time that collectives are seen to take."""
    found = list(faults(seen))
    made = [
        Clue(cause="comm.exposed", seconds=0.0, evidence=(line,))
        for name, line in found
        if not name
    ]
    if names := ", ".join(name for name, _ in found if name):
        lines = tuple(line for name, line in found if name)
        clue = Clue(cause="comm.exposed", seconds=0.0, evidence=lines, facts={"nccl": names})
        made.append(clue)
    return made


def notes(seen: Job) -> list[str]:
    """Every variable that is set, with its class, its origin, and what is known about it."""
    return [
        f"{v.name}={v.value} ({_CLASSES[v.kind]}, {v.origin})" + (f": {v.note}" if v.note else "")
        for v in seen.variables
    ]


_CLASSES = {
    "system": "system configuration",
    "debugging": "for debugging",
    "unknown": "not in NCCL's guide",
}

Fault = tuple[str, str]
"""The variable to remove (or empty), and what shows that it is in the way."""


def faults(seen: Job) -> Iterator[Fault]:
    """What forces traffic on a slow way, or cannot do what it was meant for."""
    yield from _interface(seen)
    yield from _tcp(seen)
    yield from _peers(seen)
    yield from _threads(seen)
    yield from _algorithm(seen)


def _interface(seen: Job) -> Iterator[Fault]:
    """``NCCL_SOCKET_IFNAME``: a prefix, ``=`` for an exact name, ``^`` for what not to take."""
    asked = seen.effective.get("SOCKET_IFNAME", "")
    up = [i for i in seen.fabric.interfaces if i.up and i.physical]
    if seen.hosts < 2 or not asked or not seen.fabric.interfaces:
        return
    matched = [i for i in seen.fabric.interfaces if _matches(asked, i.name)]
    if not any(i.up for i in matched):
        names = ", ".join(i.name for i in up) or "none"
        yield (
            "NCCL_SOCKET_IFNAME",
            f"NCCL_SOCKET_IFNAME={asked} matches no interface that is up ({names})",
        )
        return
    best, taken = _fastest(up), _fastest(matched)
    if best is not None and taken is not None and (best.gb_s or 0) > 1.5 * (taken.gb_s or 0):
        yield (
            "NCCL_SOCKET_IFNAME",
            f"NCCL_SOCKET_IFNAME={asked} takes {taken.name} ({_speed(taken)}); {best.name} is up "
            f"with {_speed(best)}",
        )


def _matches(asked: str, name: str) -> bool:
    exclude, text = asked.startswith("^"), asked.lstrip("^")
    exact, names = text.startswith("="), text.lstrip("=").split(",")
    hit = any(name == n if exact else name.startswith(n) for n in names if n)
    return hit != exclude


def _fastest(interfaces: Sequence[Interface]) -> Interface | None:
    return max((i for i in interfaces if i.up), key=lambda i: i.gb_s or 0.0, default=None)


def _speed(interface: Interface) -> str:
    return f"{interface.gb_s:g} Gbit/s" if interface.gb_s else "of unknown speed"


def _tcp(seen: Job) -> Iterator[Fault]:
    """TCP beside InfiniBand or RoCE: asked for, or seen in the adapters' counters."""
    ports = seen.fabric.rdma
    if seen.hosts < 2 or not ports:
        return
    names = ", ".join(port.name for port in ports[:4])
    what = "InfiniBand" if any(port.infiniband for port in ports) else "RoCE"
    if seen.effective.get("IB_DISABLE", "0") not in ("", "0"):
        yield "NCCL_IB_DISABLE", f"NCCL_IB_DISABLE sends traffic over TCP; {what} is up on {names}"
    elif seen.effective.get("NET", "").lower() == "socket":
        yield "NCCL_NET", f"NCCL_NET=Socket sends traffic over TCP; {what} is up on {names}"
    elif (
        seen.tcp_bytes_s is not None
        and seen.rdma_bytes_s is not None
        and seen.tcp_bytes_s > BUSY_BYTES_S
        and seen.rdma_bytes_s < IDLE_SHARE * seen.tcp_bytes_s
    ):
        yield (
            "",
            f"{size(seen.tcp_bytes_s)}/s leave over TCP and {size(seen.rdma_bytes_s)}/s over "
            f"{what}, which is up on {names}",
        )


def _peers(seen: Job) -> Iterator[Fault]:
    """Copies between the devices of a host forced through host memory."""
    off = seen.effective.get("P2P_DISABLE", "0") not in ("", "0")
    level = seen.effective.get("P2P_LEVEL", "").upper() in ("LOC", "0")
    if seen.local_ranks < 2 or not (off or level):
        return
    name = "NCCL_P2P_DISABLE" if off else "NCCL_P2P_LEVEL"
    value = seen.effective[name.removeprefix("NCCL_")]
    tail = "; these devices reach each other directly" if seen.joined else ""
    yield name, f"{name}={value} sends copies between devices through host memory{tail}"


def _threads(seen: Job) -> Iterator[Fault]:
    """Threads that move data over sockets beside everything else that wants a core."""
    threads = _number(seen.effective.get("SOCKET_NTHREADS"))
    wanted = threads * seen.local_ranks
    if seen.hosts < 2 or wanted <= seen.cores:
        return
    yield (
        "NCCL_SOCKET_NTHREADS",
        f"NCCL_SOCKET_NTHREADS={threads} makes {wanted} threads on {seen.cores:g} usable cores",
    )


def _algorithm(seen: Job) -> Iterator[Fault]:
    asked = seen.effective.get("ALGO", "")
    if asked.lower() in ("tree", "allreduce:tree"):
        yield (
            "NCCL_ALGO",
            f"NCCL_ALGO={asked} alone takes ring and NVLink SHARP away, and a collective that has "
            "no tree fails from NCCL 2.24 on",
        )


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isdigit() else 0
