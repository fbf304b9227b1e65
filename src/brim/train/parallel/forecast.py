"""A step's time before it is run: a device that computes and a link that carries, side by side.

The device takes the groups of the model one after the other; a group's weights must have arrived
before it, its gradients leave after it.  The link does one thing at a time, in the order in which
torch issues it.  What the device waits is exposed communication.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from brim.hardware.gpus import Gpu
from brim.hardware.links import Pcie

LATENCY_S = 30e-6
"""Of a collective, beside its bytes: launch and rendezvous."""
LINK_ATTAINED = 0.8
"""Of a link's rate: what large collectives get."""
NETWORK_GB_S = 50.0
"""Of each GPU: one port of 400 Gbit/s."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """The links of a machine; rates in bytes/s of one direction."""

    inside: float
    """Between devices of a host."""
    between: float
    """Of each device's share of the network."""
    on_a_host: int

    @classmethod
    def of_gpu(cls, gpu: Gpu, *, on_a_host: int = 8, network_gb_s: float = NETWORK_GB_S) -> Cluster:
        """NVLink inside a host, or PCIe where there is none."""
        inside = (gpu.nvlink_gb_s_bidir or 0.0) / 2
        if not inside:
            generation = gpu.pcie_gen or 3
            lanes = Pcie(generation=generation, width=16, max_generation=generation, max_width=16)
            inside = lanes.gb_s or 0.0
        return cls(inside=inside * 1e9, between=network_gb_s * 1e9, on_a_host=on_a_host)

    def seconds(self, kind: str, ranks: int, size: float, *, spread_out: bool = False) -> float:
        """One collective over ``ranks`` of ``size`` bytes (the whole buffer).

        ``spread_out``: each rank is on a host of its own, as the copies of HSDP are.
        """
        if ranks == 1:
            return 0.0
        passes = 2 if kind == "all-reduce" else 1
        if spread_out:
            carried = size * (ranks - 1) / ranks / self.between
        else:
            carried = size * (ranks - 1) / ranks / self.inside
            hosts = -(-ranks // self.on_a_host)
            if hosts > 1:  # what a host lacks comes through the links of all its devices at once
                share = self.between * min(ranks, self.on_a_host)
                carried = max(carried, size * (hosts - 1) / hosts / share)
        return LATENCY_S + passes * carried / LINK_ATTAINED


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """One group of the model in seconds."""

    forward: float
    backward: float
    gather: float = 0.0
    """0: its weights are there."""
    reduce: float = 0.0
    """0: nothing in it learns."""
    kept: bool = False
    """Weights stay from the forward to the backward pass."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Forecast:
    """Seconds of one optimizer step on every rank."""

    compute: float
    communicating: float
    """The link is busy."""
    exposed: float
    """The device waits for the link."""

    @property
    def step(self) -> float:
        return self.compute + self.exposed

    @property
    def overlapped(self) -> float:
        """Share of the communication that hides behind computing."""
        return 1 - self.exposed / self.communicating if self.communicating else 1.0


def sharded(
    work: Sequence[Work],
    rows: int,
    *,
    ahead: int = 1,
    once: bool = True,
    held: bool = False,
    update: float = 0.0,
) -> Forecast:
    """A step of ``rows`` rows with sharded groups, in forward order.

    ``ahead``: groups gathered before their turn; ``once``: gradients leave in the last row only;
    ``held``: weights are gathered for the first row only; ``update``: seconds of the optimizer,
    which waits for all gradients.
    """
    run = _Run()
    for row in range(rows):
        there = [replace(w, gather=0.0) for w in work] if held and row else work
        run.forward(there, ahead)
        run.backward(there, ahead, reduces=not once or row == rows - 1)
    return run.result(work, rows, update)


def replicated(
    work: Sequence[Work], rows: int, buckets: Sequence[tuple[float, float]], *, update: float = 0.0
) -> Forecast:
    """A step of ``rows`` rows with copies.

    ``buckets``: (share of the last backward pass that fills it and those before, seconds of its
    all-reduce), in the order in which they leave.
    """
    run = _Run()
    backward = sum(w.backward for w in work)
    run.now = rows * sum(w.forward + w.backward for w in work)
    for filled, seconds in buckets:
        run.carry(run.now - backward * (1 - filled), seconds)
    return run.result(work, rows, update)


class _Run:
    """Where the device and the link are in time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.link = 0.0
        self.carried = 0.0

    def carry(self, issued: float, seconds: float) -> float:
        """When something that is issued then has arrived."""
        if seconds:
            self.link = max(self.link, issued) + seconds
            self.carried += seconds
        return self.link if seconds else issued

    def forward(self, work: Sequence[Work], ahead: int) -> None:
        self._pass([(w.gather, w.forward, 0.0) for w in work], ahead)

    def backward(self, work: Sequence[Work], ahead: int, *, reduces: bool) -> None:
        self._pass(
            [
                (0.0 if w.kept else w.gather, w.backward, w.reduce if reduces else 0.0)
                for w in reversed(work)
            ],
            ahead,
        )

    def _pass(self, groups: Sequence[tuple[float, float, float]], ahead: int) -> None:
        """(gather, compute, reduce) of each group in the order of this pass."""
        arrived: list[float] = []
        for place, (_, compute, reduce) in enumerate(groups):
            # a group's gather and those of the next ones are issued when it is about to run
            for gather, _, _ in groups[len(arrived) : place + 1 + ahead]:
                arrived.append(self.carry(self.now, gather))
            self.now = max(self.now, arrived[place]) + compute
            self.carry(self.now, reduce)

    def result(self, work: Sequence[Work], rows: int, update: float) -> Forecast:
        compute = rows * sum(w.forward + w.backward for w in work)
        exposed = max(self.now, self.link) - compute
        return Forecast(compute=compute + update, communicating=self.carried, exposed=exposed)
