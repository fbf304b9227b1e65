"""Model FLOPs of a step, from the operations' recorded sizes: what MFU is counted from.

A multiply-add counts 2; matrix products, convolutions and attention count, element-wise work does
not.  Attention is counted in full (a causal mask is not in the trace) and its backward as twice
its forward; what activation checkpointing runs again is left out (Chowdhery et al., PaLM, appendix
B).  Kernels behind operators of other libraries have no known sizes: their work is missing, so the
figure is a lower bound where such kernels do matrix products.
"""

from __future__ import annotations

import numpy as np

from brim.diagnose.trace.flops import work
from brim.diagnose.trace.rank import Rank
from brim.hardware.gpus import peak_flops

_COUNTED = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "_scaled_mm",
    "_convolution",
    "convolution_backward",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_backward",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_cudnn_attention_backward",
)
"""Operations that do the work themselves; what wraps them (``linear``, ``matmul``) is not here."""


def flops_per_step(rank: Rank) -> float | None:
    """Counted FLOPs of a mean step; None without steps or without recorded sizes."""
    host, trace = rank.trace.host, rank.trace
    names = {f"aten::{name}" for name in _COUNTED}
    wanted = [index for index, name in enumerate(trace.names) if name in names]
    low, high = rank.device.host_window
    rows = np.flatnonzero(
        np.isin(host.name, wanted)
        & (host.dims >= 0)
        & ~rank.operations.recomputed
        & (host.start >= low)
        & (host.start < high)
    )
    if not rank.steps or not len(rows):
        return None
    total = 0.0
    for row in rows.tolist():
        kinds = trace.types[host.types[row]] if host.types[row] >= 0 else "[]"
        done = work(trace.names[host.name[row]], trace.dims[host.dims[row]], kinds)
        total += done.flops if done is not None else 0.0
    return total / len(rank.steps) or None


def utilisation(rank: Rank) -> float | None:
    """Model FLOPs without padding over the dense bf16 peak and the step's wall time (MFU); None
    where the work, the device or the step is not known."""
    gpu = rank.kernels.gpu
    peak = rank.context.peak_flops or (peak_flops(gpu, "bf16") if gpu is not None else None)
    return _share_of(peak, rank)


def share_of_attainable(rank: Rank) -> float | None:
    """The same over what a matrix product was measured to reach on this machine, at most 1; None
    where it was never measured (``brim hw --measure``)."""
    share = _share_of(rank.context.attainable_flops, rank)
    return None if share is None else min(share, 1.0)


def _share_of(peak: float | None, rank: Rank) -> float | None:
    context = rank.context
    flops = context.model_flops_per_step or flops_per_step(rank)
    steps = len(rank.steps)
    wall = context.step_s or (rank.window_ns * 1e-9 / steps if steps else None)
    if not flops or not peak or not wall:
        return None
    real = 1.0 if context.model_flops_per_step else 1.0 - (context.padding or 0.0)
    return flops * real / wall / peak
