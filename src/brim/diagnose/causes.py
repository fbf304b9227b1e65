"""The causes: every lost moment of the device has exactly one of these ids.  Ids are API."""

from __future__ import annotations

from typing import Final

COMPUTE: Final = "compute"
"""Not a cause: the healthy part of an account."""
UNKNOWN: Final = "unknown"
"""Measured, and not to be told apart; never guessed."""

CAUSES: Final[dict[str, str]] = {
    "input.workers": "too few loader workers: they are busy all the time and cores are left",
    "input.decode": "decoding or transforming samples needs more CPU than the usable cores give",
    "input.main-process": "loading, processing or collating runs in the training process",
    "input.storage": "loader workers wait for storage",
    "input.handoff": "batches are slow to move from the workers to the training process",
    "input.oversubscription": "the loader runs more threads than there are cores",
    "input.cpu-limit": "the process may use fewer cores than the machine has",
    "input.worker-restart": "loader workers are started anew every epoch",
    "input.startup": "the first batch takes long, once",
    "transfer.pageable": "copies to the device come from pageable memory, or are not overlapped",
    "host.launch": "the CPU cannot launch the many small operations fast enough",
    "host.sync": "reads of device values make the host wait and drain the device's queue",
    "host.gc": "Python's garbage collector stops the training thread",
    "host.gil": "another Python thread of the process holds the interpreter lock",
    "host.debug-mode": "a tracer, debugger, profiler or anomaly mode is on",
    "host.recompile": "code is compiled anew in the steady state",
    "host.offload": "optimizer, parameters or activations live on the CPU",
    "host.periodic": "logging, checkpointing or evaluation stops training",
    "memory.cache-flush": "the loop empties caches or collects garbage explicitly",
    "memory.pressure": "memory is short: the allocator retries or the host swaps",
    "compute.padding": "padding tokens are computed",
    "compute.precision": "matrix products run in a slower type than the device offers",
    "compute.attention": "attention materialises its scores or masks",
    "compute.slow-kernel": "one operation runs far below what the device can do",
    "compute.recompute": "activations are recomputed although memory is free",
    "compute.unfused": "memory-bound element-wise chains are not fused",
    "compute.shape-search": "kernels are searched for ever-new shapes",
    "compute.expert-loop": "a Python loop over experts or images launches small kernels",
    "comm.exposed": "collectives are not hidden behind compute",
    "comm.straggler-data": "ranks wait for the rank with more work in its batch",
    "comm.straggler-device": "ranks wait for a slow device, always the same",
    "comm.too-many": "more collectives per optimizer step than needed",
    "device.throttled": "clocks are held down by power, heat or a cap",
    "device.shared": "another process uses the device",
}

REPORTED_FROM: Final = 0.05
"""A finding is reported from this share of the measured wall time on."""


def family(cause: str) -> str:
    """``input.workers`` → ``input``."""
    return cause.partition(".")[0]
