"""What process this is: versions, devices, cores, and variables from an allow-list.

Never the whole environment and never a value that may be a secret.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from typing import Any

VERSION = 1
_ALLOWED = re.compile(
    r"^(OMP_|MKL_|OPENBLAS_|KMP_|GOMP_|NUMEXPR_|CUDA_|NCCL_|GLOO_|TORCH|PYTORCH_|TOKENIZERS_PARALLELISM$"
    r"|RANK$|LOCAL_RANK$|WORLD_SIZE$|LOCAL_WORLD_SIZE$|ACCELERATE_|DEEPSPEED_|PYTHON(DEVMODE|MALLOC|TRACEMALLOC|FAULTHANDLER)$"
    r"|MALLOC_|LD_PRELOAD$|HF_HUB_OFFLINE$|TRITON_|SLURM_(PROCID|NTASKS|NNODES|LOCALID)$)"
)
_SECRET = re.compile(r"KEY|TOKEN(?!IZ)|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)
_PACKAGES = (
    "torch", "transformers", "transformers.trainer", "accelerate", "deepspeed",
    "lightning", "pytorch_lightning", "swift",
    "llamafactory", "trl", "unsloth", "axolotl", "liger_kernel", "flash_attn", "xformers", "peft",
    "bitsandbytes", "torchao", "triton", "datasets", "torchvision", "cv2", "PIL", "numpy", "wandb",
    "tensorboard", "mlflow", "torch_tensorrt", "transformer_engine", "webdataset", "spdl", "brim",
)  # fmt: skip


def header() -> dict[str, Any]:
    """The first line of a process's step file."""
    from _brim_hooks import recorder

    return {
        "kind": "header",
        "version": VERSION,
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "rank": recorder.rank(),
        "local_rank": _number("LOCAL_RANK", 0),
        "world": (recorder.distributed() or (0, _number("WORLD_SIZE", 1)))[1],
        "t": time.perf_counter(),
        "python": platform.python_version(),
        "versions": versions(),
        "device": device(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "machine_cores": os.cpu_count(),
        "env": environment(os.environ),
        "threads": _torch_threads(),
    }


def footer(why: str, failures: dict[str, str]) -> dict[str, Any]:
    """The last line: what only the end knows."""
    import gc

    from _brim_hooks import interpreter, training

    return {
        "kind": "footer",
        "why": why,
        "failures": failures,
        "versions": versions(),
        "device": device(),
        "memory": memory(),
        "gc_enabled": gc.isenabled(),
        "ddp": training.data_parallel(),
        "debug": interpreter.debug_modes() if why != "the process ended" else [],
        "compile": _compile_counters(),
    }


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value[:200]
        for name, value in sorted(variables.items())
        if _ALLOWED.match(name) and not _SECRET.search(name) and "://" not in value
    }


def versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        module = sys.modules.get(name)
        version = getattr(module, "__version__", None)
        if module is not None:
            found[name] = str(version) if version is not None else "?"
    return found


def device() -> dict[str, Any] | None:
    """The CUDA device that this process uses, if it uses one; never opens a context."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "cuda") or not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device()
    p = torch.cuda.get_device_properties(index)
    return {
        "index": index,
        "name": p.name,
        "capability": [p.major, p.minor],
        "sm_count": p.multi_processor_count,
        "memory": p.total_memory,
        "cuda": torch.version.cuda,
        "hip": torch.version.hip,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_enabled": torch.backends.cudnn.enabled,
    }


def memory() -> dict[str, Any] | None:
    """Peak and limit of the device's memory, and the allocator's counters."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    stats = torch.cuda.memory_stats()
    keep = {
        "allocated_peak": "allocated_bytes.all.peak",
        "reserved_peak": "reserved_bytes.all.peak",
        "retries": "num_alloc_retries",
        "ooms": "num_ooms",
        "device_alloc": "num_device_alloc",
        "device_free": "num_device_free",
    }
    found = {name: stats[key] for name, key in keep.items() if key in stats}
    found["free"], found["total"] = torch.cuda.mem_get_info()
    return found


def _torch_threads() -> int | None:
    torch = sys.modules.get("torch")
    get = getattr(torch, "get_num_threads", None)
    return get() if get is not None else None


def _compile_counters() -> dict[str, Any]:
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    if counters is None:
        return {}
    return {
        "frames": dict(counters.get("frames", {})),
        "unique_graphs": counters.get("stats", {}).get("unique_graphs", 0),
        "recompile_limit": counters.get("recompile_limit", 0) and 1,
    }


def _number(name: str, default: int) -> int:
    value = os.environ.get(name, "")
    return int(value) if value.isdigit() else default
