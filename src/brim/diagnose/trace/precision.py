"""Matrix products in a slower number format than the device has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from brim.diagnose.trace.flops import Roof
from brim.diagnose.trace.kernels import Kind
from brim.diagnose.trace.loss import REACHED, Claim, claim
from brim.diagnose.trace.roofline import Call
from brim.diagnose.trace.table import Float64, Kernels
from brim.diagnose.trace.timeline import Bool
from brim.hardware import gpus

ORDINARY_UTILISATION: Final = 0.6
"""Share of a kernel's time that is arithmetic, where its work is not known."""
COMPUTE_BOUND: Final = 0.3
"""From this share of its peak on a matrix product is bound by arithmetic."""


def precision(table: Kernels, free: Bool, *, calls: Sequence[Call]) -> Claim:
    """Matrix products and convolutions in plain fp32 where the device has faster formats.

    Only formats that need no other change count (TF32, bf16): on Volta and Turing the step to
    fp16 needs loss scaling and changes the numbers, so it is not called a fault.
    """
    wanted = np.isin(table.kind, (Kind.MATMUL, Kind.CONV)) & (table.dtype == "fp32") & free
    fast = fast_format(table)
    if fast is None or not wanted.any():
        return None, np.zeros(len(table.rows), np.bool_)
    back = _won(table, wanted, fast, calls)
    evidence = [
        f"{int(wanted.sum()):,} matrix products and convolutions run in plain fp32; the device "
        f"does {fast.ratio:.0f} times as much in {fast.name}"
    ]
    return claim(table, "compute.precision", wanted, back, evidence)


@dataclass(frozen=True, slots=True)
class Fast:
    name: str
    ratio: float
    """Peak in this format over the peak in fp32."""
    peak: float | None
    """Peak in this format, FLOP/s, where it is known."""
    plain: float = 0.0
    """Peak in fp32, FLOP/s."""
    bandwidth: float = 0.0
    """Of the device's memory, bytes/s; 0 where it is not known."""


def fast_format(table: Kernels) -> Fast | None:
    """The fastest format that fp32 code may use by a switch; from Ampere on every NVIDIA GPU has
    TF32 at eight times fp32, also one that the table of GPUs does not hold."""
    gpu, info = table.gpu, table.device.trace.devices.get(table.device.main_device)
    if gpu is None:
        ampere = info is not None and info.capability >= (8, 0) and "AMD" not in info.name
        return Fast("tf32", 8.0, None) if ampere else None
    plain = gpus.peak_flops(gpu, "fp32")
    for name in ("tf32", "bf16"):
        peak = gpus.peak_flops(gpu, name)
        if peak is not None and plain is not None and peak > plain:
            return Fast(name, peak / plain, peak, plain, gpu.bandwidth_gb_s * 1e9)
    return None


def _won(table: Kernels, wanted: Bool, fast: Fast, calls: Sequence[Call]) -> Float64:
    """Nanoseconds of each kernel that the faster format saves: what the same work takes at
    :data:`REACHED` of the roof, where a call's work is known; else an ordinary kernel's share.  A
    call far below its own peak is not held up by arithmetic, and wins less."""
    factor = min(8.0, max(1.0, REACHED * fast.ratio))
    won = np.asarray(table.ns * ORDINARY_UTILISATION * (1.0 - 1.0 / factor), np.float64)
    if fast.peak is None:
        return won
    roof = Roof(REACHED * fast.peak, REACHED * fast.bandwidth)
    for call in calls:
        if call.work is not None and wanted[call.main]:
            bound = min(1.0, call.work.flops / fast.plain / (call.ns * 1e-9) / COMPUTE_BOUND)
            saved = bound * max(0.0, 1.0 - roof.seconds(call.work)[0] * 1e9 / call.ns)
            won[call.members] = saved * table.ns[call.members]
    return won
