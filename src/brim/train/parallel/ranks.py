"""Who takes part in a run: this process's rank, its device, and agreement between hosts.

Two process groups: the default one moves gradients (NCCL between GPUs, gloo between CPUs); the
other, always gloo, is for what the host processes agree on, so that no such word waits for a
device or shares its deadline.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

from brim.errors import UsageError

T = TypeVar("T")

COLLECTIVE_TIMEOUT = timedelta(minutes=10)
"""A collective between devices that takes longer than this means that a rank is gone or stuck."""
HOST_TIMEOUT = timedelta(hours=12)
"""Hosts wait for each other while one of them scans data, loads weights or writes a checkpoint."""

_left: list[dist.ProcessGroup | None] = []


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """One process among ``world``; alone it is rank 0 of 1 and every method is free."""

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    """Ranks on this host."""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    host: dist.ProcessGroup | None = field(default=None, repr=False)
    """The gloo group of all ranks; None outside torchrun."""

    @property
    def first(self) -> bool:
        """Whether this rank speaks and writes for all."""
        return self.rank == 0

    @property
    def together(self) -> bool:
        """Whether process groups exist: under torchrun, with a single rank too."""
        return self.host is not None

    @property
    def name(self) -> str:
        """``rank 3 (host a, device 1)``, for messages."""
        return f"rank {self.rank} (host {socket.gethostname()}, device {self.local_rank})"

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is set on at least one rank; every rank must ask."""
        if self.world == 1:
            return flag
        value = torch.tensor(int(flag))
        dist.all_reduce(value, dist.ReduceOp.MAX, self.host)
        return bool(value)

    def gather(self, value: T) -> list[T]:
        """The values of all ranks, by rank."""
        if self.world == 1:
            return [value]
        found: list[T | None] = [None] * self.world
        dist.all_gather_object(found, value, self.host)
        return found  # type: ignore[return-value]

    def told(self, value: T) -> T:
        """Rank 0's ``value``."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.host)
        return box[0]

    def barrier(self) -> None:
        """Wait for all ranks, for hours if need be."""
        if self.world > 1:
            dist.barrier(self.host)

    def in_turn(self, make: Callable[[], T]) -> T:
        """``make()`` on rank 0, then on one rank of every host, then on the others.

        For work whose first run leaves a cache that the later ones read.
        """
        turn = 0 if self.first else 1 if self.local_rank == 0 else 2
        result: T | None = None
        for current in range(3):
            if current == turn:
                result = make()
            self.barrier()
        return result  # type: ignore[return-value]

    def leave(self) -> None:
        """Close the process groups; those of gloo are kept as they are until the process ends.

        Gloo's thread lets go of the last collective under a lock, for which it may need the
        interpreter's; a thread that destroys the group holds the latter and waits for the former.
        """
        if self.together and dist.is_initialized():
            _left.append(self.host)
            if self.device.type == "cpu":
                _left.append(dist.group.WORLD)
            dist.destroy_process_group()


def join() -> Ranks:
    """The ranks that torchrun started; without torchrun, one alone."""
    cuda = torch.cuda.is_available()
    if "TORCHELASTIC_RUN_ID" not in os.environ and "LOCAL_RANK" not in os.environ:
        return Ranks(device=torch.device("cuda" if cuda else "cpu"))
    local = int(os.environ["LOCAL_RANK"])
    if cuda and local >= torch.cuda.device_count():
        raise UsageError(
            f"local rank {local} has no GPU: this host shows {torch.cuda.device_count()}",
            hint="lower torchrun's --nproc-per-node, or see CUDA_VISIBLE_DEVICES",
        )
    device = torch.device("cuda", local) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    store, rank, world = next(rendezvous("env://", timeout=COLLECTIVE_TIMEOUT))
    dist.init_process_group(
        "nccl" if cuda else "gloo",
        timeout=COLLECTIVE_TIMEOUT,
        # torchrun keeps its store when it restarts ranks, with the addresses of those that died
        store=dist.PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', 0)}", store),
        rank=rank,
        world_size=world,
        device_id=device if cuda else None,
    )
    return Ranks(
        rank=dist.get_rank(),
        world=dist.get_world_size(),
        local_rank=local,
        local_world=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        device=device,
        host=dist.new_group(backend="gloo", timeout=HOST_TIMEOUT),
    )
