"""Each rank on cores of its own, those near its device first.

Linux says which cores are near a device; the ranks of a host share them out in the order of their
local ranks.  Threads and loader workers that are started later inherit the mask.  A mask with which
the process was started is a limit that somebody set; one that the script has put on itself is not.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from _brim_hooks import recorder as _r
from _brim_hooks.cure import Cure, safely

PCI = "/sys/bus/pci/devices"


def mask() -> list[int]:
    """Cores that this process may run on; empty where the system does not say."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


START = mask()  # before the script's first line


class Affinity(Cure):
    ids = ("cpu.affinity",)
    never = "the job neither iterated a loader nor stepped"

    def __init__(self, wanted: dict[str, Any]) -> None:
        super().__init__(wanted)
        self.done = False

    def patches(self) -> list[tuple[str, Callable[[Any], None]]]:
        return [
            ("torch.utils.data.dataloader", self.patch_loader),
            ("torch.optim.optimizer", self.patch_optimizer),
        ]

    def patch_loader(self, module: Any) -> None:
        """Before the workers start, so that they inherit it."""
        original = module.DataLoader.__iter__

        def __iter__(loader: Any) -> Any:
            self.pin()
            return original(loader)

        module.DataLoader.__iter__ = __iter__

    def patch_optimizer(self, module: Any) -> None:
        module.register_optimizer_step_pre_hook(self.pin)

    @safely
    def pin(self, *ignored: Any) -> None:
        del ignored
        if self.done or not self.value or (_r.current is not None and not _r.current.mine()):
            return
        self.done = True
        now = mask()
        if not now:
            self.unavailable("this system has no affinity of threads")
            return
        rank, ranks = _number("LOCAL_RANK", 0), _number("LOCAL_WORLD_SIZE", 1)
        cores = share(START or now, [near(r) for r in range(ranks)], rank)
        if not cores or cores == now:
            self.unavailable("one rank has all cores, and none is nearer to its device")
            return
        for thread in os.listdir("/proc/self/task"):
            try:
                os.sched_setaffinity(int(thread), cores)
            except (OSError, ValueError):
                pass  # it has ended
        self.applied(ranges(now), "cores %s" % ranges(cores))


def share(allowed: list[int], nearest: list[list[int]], rank: int) -> list[int]:
    """The cores of ``rank``: an even part of those near its device, in the order of ranks.

    ``nearest[r]``: cores near rank ``r``'s device, empty where that is not known.
    """
    pools = [[c for c in allowed if c in set(cores)] or allowed for cores in nearest]
    mates = [r for r, pool in enumerate(pools) if pool == pools[rank]]
    pool, place = pools[rank], mates.index(rank)
    return pool[len(pool) * place // len(mates) : len(pool) * (place + 1) // len(mates)]


def near(local_rank: int) -> list[int]:
    """Cores near the device of a local rank, as PCI says; empty without such a device."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized() or local_rank >= torch.cuda.device_count():
        return []
    index = torch.cuda.current_device() if local_rank == _number("LOCAL_RANK", 0) else local_rank
    p = torch.cuda.get_device_properties(index)
    try:
        place = "%04x:%02x:%02x.0" % (p.pci_domain_id, p.pci_bus_id, p.pci_device_id)
        with open("%s/%s/local_cpulist" % (PCI, place), encoding="ascii") as f:
            return numbers(f.read().strip())
    except (AttributeError, OSError, ValueError):
        return []


def numbers(text: str) -> list[int]:
    """``0-2,8`` → [0, 1, 2, 8]."""
    found: list[int] = []
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def ranges(cores: list[int]) -> str:
    """[0, 1, 2, 8] → ``0-2,8``."""
    parts: list[list[int]] = []
    for core in cores:
        if parts and core == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], core]
        else:
            parts.append([core, core])
    return ",".join("%d" % a if a == b else "%d-%d" % (a, b) for a, b in parts)


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default


CURES = (Affinity,)
