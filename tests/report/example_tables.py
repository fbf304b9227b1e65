"""Tables of an invented 8-rank trace of 3 steps that add up: lanes, steps and ranks agree."""

from __future__ import annotations

import random
from typing import Any

from brim.diagnose.trace.tables import (
    CollRow,
    KernelRow,
    KindRow,
    ModuleRow,
    RankRow,
    Segment,
    StepRow,
    rows,
)

RANKS, STEPS, LAYERS = 8, 3, 24
STEP_US = 412_000.0


def timeline() -> list[Segment]:
    """Per layer: compute, an exposed gather, a small gap; at each step's start an input wait."""
    out: list[Segment] = []
    for rank in range(RANKS):
        noise = random.Random(rank)
        for step in range(STEPS):
            out += _step(rank, step * STEP_US, noise)
    return out


def _step(rank: int, start: float, noise: random.Random) -> list[Segment]:
    now = start
    out = []

    def add(lane: Any, us: float, label: str, name: str = "") -> None:
        out.append(
            Segment(rank=rank, lane=lane, start_us=now, end_us=now + us, label=label, name=name)
        )

    wait = 9_000.0 * (1 + 0.3 * noise.random())
    add("idle", wait, "input.workers")
    add("host", wait, "input", "DataLoader.__next__")
    now += wait
    layer_us = (STEP_US - wait) / LAYERS
    for layer in range(LAYERS):
        compute = layer_us * (0.62 + 0.04 * noise.random())
        gap = 180.0
        comm = layer_us - compute - gap
        add("host", layer_us * 0.55, "launch", f"Qwen3VLTextDecoderLayer_{layer}")
        add("device", compute, "compute", "nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT")
        now += compute
        add("device", comm, "comm", "ncclDevKernel_AllGather_RING_LL")
        now += comm
        add("idle", gap, "host.launch")
        now += gap
    return out


def steps() -> list[StepRow]:
    return [
        StepRow(
            rank=rank,
            name=f"ProfilerStep#{6 + step}",
            start_us=step * STEP_US,
            wall_us=STEP_US * (1 + 0.01 * step),
            compute_us=STEP_US * 0.63,
            exposed_comm_us=STEP_US * 0.33,
            exposed_copy_us=0.0,
            idle_us=STEP_US * (0.04 + 0.01 * step),
            idle_by_cause={
                "input.workers": STEP_US * (0.03 + 0.01 * step),
                "host.launch": STEP_US * 0.01,
            },
        )
        for rank in range(RANKS)
        for step in range(STEPS)
    ]


def ranks() -> list[RankRow]:
    return [
        RankRow(
            rank=rank,
            file=f"rank{rank}.1764580000.pt.trace.json.gz",
            device="NVIDIA A100-SXM4-80GB",
            window_us=STEPS * STEP_US,
            steps=STEPS,
            compute=0.63 + (0.08 if rank == 5 else 0.0),
            exposed_comm=0.33 - (0.08 if rank == 5 else 0.0),
            exposed_copy=0.0,
            idle=0.04,
            idle_by_cause={"input.workers": 0.03, "host.launch": 0.01},
            comm_wait_us=(2_000.0 if rank == 5 else 61_000.0),
            late_us=(58_000.0 if rank == 5 else 900.0),
            late_calls=(61 if rank == 5 else 3),
            late_cause="compute",
        )
        for rank in range(RANKS)
    ]


_KERNELS = (
    # name, kind, dtype, library, calls, share, op, flops, bytes, attainable, bound
    ("nvjet_sm90_tst_128x256_64x4_2x1_v_bz_coopA_NNT", "matmul", "bf16", "cublas", 2016, 0.371,
     "aten::mm [8192, 2560] × [2560, 9728]", 6.9e14, None, 0.70, "compute"),
    ("ncclDevKernel_AllGather_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "comm", "", "nccl",
     576, 0.331, "nccl:_all_gather_base", None, 2.1e10, None, ""),
    ("void flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<Flash_bwd_kernel_traits<128, 64>>",
     "attention", "bf16", "flash-attention", 576, 0.094, "_flash_attn_backward", 1.7e14, None,
     0.17, "compute"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::MulFunctor<float>>",
     "elementwise", "fp32", "aten", 9216, 0.061, "aten::mul [8192, 2560]", None, 2.4e12, 0.72,
     "memory"),
    ("triton_red_fused__to_copy_add_mean_mul_pow_rsqrt_3", "norm", "bf16", "triton", 1152, 0.022,
     "", None, 2.9e12, 0.87, "memory"),
)  # fmt: skip


def kernels() -> list[KernelRow]:
    window = RANKS * STEPS * STEP_US
    return [
        KernelRow(
            name=name, kind=kind, dtype=dtype, library=library, calls=calls, share=share,
            time_us=share * window, op=op, flops_per_s=flops, bytes_per_s=n_bytes,
            attainable=attainable, bound=bound,  # type: ignore[arg-type]
        )
        for name, kind, dtype, library, calls, share, op, flops, n_bytes, attainable, bound
        in _KERNELS
    ]  # fmt: skip


def kernel_kinds() -> list[KindRow]:
    return [
        KindRow(kind=k.kind, calls=k.calls, time_us=k.time_us, share=k.share,
                mean_us=k.time_us / k.calls)
        for k in kernels()
    ]  # fmt: skip


def collectives() -> list[CollRow]:
    return [
        CollRow(
            name="all_gather", calls_per_step=24.0, bytes_per_step=7.4e9, time_us=138_000.0,
            exposed_us=136_000.0, spread_us=2_100.0, bus_bytes_per_s=5.1e10,
        ),
        CollRow(
            name="all_reduce", calls_per_step=1.0, bytes_per_step=None, time_us=40.0,
            exposed_us=2.0, spread_us=None, bus_bytes_per_s=None,
        ),
    ]  # fmt: skip


def modules() -> list[ModuleRow]:
    window = RANKS * STEPS * STEP_US
    return [
        ModuleRow(module="Qwen3VLTextModel", device_us=0.51 * window, share=0.51, kernels=11_400,
                  kinds={"matmul": 0.33 * window, "attention": 0.09 * window,
                         "elementwise": 0.09 * window}),
        ModuleRow(module="Qwen3VLVisionModel", device_us=0.14 * window, share=0.14, kernels=5_100,
                  kinds={"matmul": 0.09 * window, "attention": 0.05 * window}),
    ]  # fmt: skip


def details() -> dict[str, Any]:
    """All tables, as plain dictionaries."""
    return {
        "kernels": rows(kernels()),
        "kernel_kinds": rows(kernel_kinds()),
        "ranks": rows(ranks()),
        "collectives": rows(collectives()),
        "steps": rows(steps()),
        "timeline": rows(timeline()),
        "modules": rows(modules()),
    }
