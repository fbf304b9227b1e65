"""How devices are joined to the host and to each other, as NVML shows it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

# GB/s of one lane in one direction, after line coding; PCIe base specifications 3.0 to 6.0.
_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}

# nvmlGpuTopologyLevel_t, in the words of `nvidia-smi topo`.
_LEVELS = {
    0: "same board",
    10: "PIX (one PCIe switch)",
    20: "PXB (several PCIe switches)",
    30: "PHB (one host bridge)",
    40: "NODE (one NUMA node)",
    50: "SYS (across NUMA nodes)",
}
_P2P_NVLINK = 2  # nvmlGpuP2PCapsIndex_t
_P2P_OK = 0
_MAX_NVLINKS = 18
_ENABLED = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Pcie:
    """A device's PCIe link; an idle device may show a lower generation than it reaches."""

    generation: int
    width: int
    max_generation: int
    max_width: int

    @property
    def gb_s(self) -> float | None:
        """What the link carries in one direction at its best generation, in GB/s."""
        lane = _LANE_GB_S.get(self.max_generation)
        return None if lane is None else lane * self.width

    @property
    def narrow(self) -> bool:
        """Fewer lanes than the card has: a wrong slot or a bad contact."""
        return self.width < self.max_width


@dataclass(frozen=True, kw_only=True, slots=True)
class Links:
    """The links of one device."""

    index: int
    pcie: Pcie | None
    nvlinks: int | None
    """Active NVLinks; None where the driver does not say."""
    peers: dict[int, str]
    """Other device → the way to it."""


def links(lib: Any = None) -> list[Links]:
    """The links of all devices; empty where there is no NVML.

    ``lib``: a module like ``pynvml``, None for the real one.  Opens and closes it.
    """
    try:
        lib = lib or importlib.import_module("pynvml")
    except ImportError:
        return []
    try:
        lib.nvmlInit()
    except lib.NVMLError:
        return []
    try:
        count = range(lib.nvmlDeviceGetCount())
        handles = {i: h for i in count if (h := _handle(lib, i)) is not None}
        return [_links(lib, i, handles) for i in handles]
    finally:
        lib.nvmlShutdown()


def joined(found: list[Links]) -> bool | None:
    """Do all devices reach each other without the host's memory?  None with fewer than two, and
    where one way is not known."""
    ways = [way for device in found for way in device.peers.values()]
    if not ways or "unknown" in ways:
        return None
    return all(way == "NVLink" or way.startswith(("PIX", "PXB", "same board")) for way in ways)


def _links(lib: Any, index: int, handles: dict[int, Any]) -> Links:
    handle = handles[index]
    return Links(
        index=index,
        pcie=_pcie(lib, handle),
        nvlinks=_nvlinks(lib, handle),
        peers={i: _way(lib, handle, other) for i, other in handles.items() if i != index},
    )


def _handle(lib: Any, index: int) -> Any:
    return _try(lib, lambda: lib.nvmlDeviceGetHandleByIndex(index))


def _pcie(lib: Any, handle: Any) -> Pcie | None:
    def read() -> Pcie:
        return Pcie(
            generation=lib.nvmlDeviceGetCurrPcieLinkGeneration(handle),
            width=lib.nvmlDeviceGetCurrPcieLinkWidth(handle),
            max_generation=lib.nvmlDeviceGetMaxPcieLinkGeneration(handle),
            max_width=lib.nvmlDeviceGetMaxPcieLinkWidth(handle),
        )

    found: Pcie | None = _try(lib, read)
    return found


def _nvlinks(lib: Any, handle: Any) -> int | None:
    def state(link: int) -> Any:
        return _try(lib, lambda: lib.nvmlDeviceGetNvLinkState(handle, link))

    states = [state(link) for link in range(_MAX_NVLINKS)]
    known = [state for state in states if state is not None]
    return known.count(_ENABLED) if known else None


def _way(lib: Any, one: Any, other: Any) -> str:
    if _try(lib, lambda: lib.nvmlDeviceGetP2PStatus(one, other, _P2P_NVLINK)) == _P2P_OK:
        return "NVLink"
    level = _try(lib, lambda: lib.nvmlDeviceGetTopologyCommonAncestor(one, other))
    return _LEVELS.get(level, "unknown") if level is not None else "unknown"


def _try(lib: Any, read: Callable[[], Any]) -> Any:
    try:
        return read()
    except (lib.NVMLError, AttributeError):
        return None
