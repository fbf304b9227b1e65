"""Short measurements of what a machine reaches, run as a child of ``brim hw --measure``.

::

    python -m brim.observe.measure matmul 0     one JSON object on standard output

A child, because torch opens a context that stays open for as long as its process lives.
"""

from __future__ import annotations

import io
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

_WARM_UPS = 3
_SECONDS = 0.6
"""Per figure, after warming up."""
_GPU_SIZE, _CPU_SIZE = 8192, 1024
_COPY_BYTES = 256 << 20


def devices() -> dict[str, Any]:
    """What torch says about itself and its devices."""
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        p = torch.cuda.get_device_properties(index)
        found.append(
            {
                "index": index,
                "name": p.name,
                "capability": None if torch.version.hip else [p.major, p.minor],
                "sm_count": p.multi_processor_count,
                "memory_bytes": p.total_memory,
                "pci": f"{getattr(p, 'pci_domain_id', 0):04x}:{getattr(p, 'pci_bus_id', 0):02x}:"
                f"{getattr(p, 'pci_device_id', 0):02x}.0",
            }
        )
    return {
        "torch": torch.__version__,
        "arch_list": torch.cuda.get_arch_list() if found else [],
        "devices": found,
    }


def matmul(index: int = 0) -> dict[str, Any]:
    """FLOP/s of the best square product by type, on random data.

    Zeros would be faster: they switch fewer transistors and so leave the power cap alone.
    """
    import torch

    device = _device(index)
    on_gpu = device != "cpu"
    figures: dict[str, float] = {}
    for name in ("bf16", "fp16", "fp32", "tf32", "fp8") if on_gpu else ("fp32", "bf16"):
        product = _product(name, _GPU_SIZE if on_gpu else _CPU_SIZE, device)
        if product is not None:
            size = _GPU_SIZE if on_gpu else _CPU_SIZE
            figures[name] = 2 * size**3 / _seconds_each(product, device)
    name = torch.cuda.get_device_name(index) if on_gpu else "cpu"
    return {"name": name, "matmul_flops": figures, "torch": torch.__version__}


def copies(index: int = 0) -> dict[str, Any]:
    """Bytes per second between host and device, and inside the device; {} without a device."""
    import torch

    if _device(index) == "cpu":
        return {"copy_bytes_s": {}}
    device = f"cuda:{index}"
    on_device = torch.empty(_COPY_BYTES, dtype=torch.uint8, device=device)
    other = torch.empty_like(on_device)
    pageable = torch.ones(_COPY_BYTES, dtype=torch.uint8)
    pinned = pageable.pin_memory()
    ways: dict[str, Callable[[], Any]] = {
        "h2d-pinned": lambda: on_device.copy_(pinned, non_blocking=True),
        "h2d-pageable": lambda: on_device.copy_(pageable),
        "d2h-pinned": lambda: pinned.copy_(on_device, non_blocking=True),
        "d2d": lambda: other.copy_(on_device),
    }
    moved = {"d2d": 2 * _COPY_BYTES}
    return {
        "copy_bytes_s": {
            name: moved.get(name, _COPY_BYTES) / _seconds_each(copy, device)
            for name, copy in ways.items()
        }
    }


def decode() -> dict[str, Any]:
    """One-megapixel JPEG images per second on one core, by library."""
    data = _jpeg()
    decoders: dict[str, Callable[[], Any]] = {}
    try:
        from PIL import Image

        def pillow() -> None:
            Image.open(io.BytesIO(data)).convert("RGB")

        decoders["pillow"] = pillow
    except ImportError:
        pass
    try:
        import simplejpeg

        decoders["simplejpeg"] = lambda: simplejpeg.decode_jpeg(data)
    except ImportError:
        pass
    return {"images_s": {name: 1 / _seconds_each(run, "cpu") for name, run in decoders.items()}}


def _device(index: int) -> str:
    import torch

    return f"cuda:{index}" if torch.cuda.is_available() else "cpu"


def _product(name: str, size: int, device: str) -> Callable[[], Any] | None:
    """A matrix product of the named kind, or None where the device has no such units."""
    import torch

    capability = (9, 9) if device == "cpu" else torch.cuda.get_device_capability(device)
    needs = {"bf16": (8, 0), "tf32": (8, 0), "fp8": (8, 9), "fp16": (5, 3)}
    if capability < needs.get(name, (0, 0)):
        return None
    if name == "fp8":
        return _fp8_product(size, device)
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(name, torch.float32)
    a = torch.randn(size, size, device=device, dtype=dtype)
    b = torch.randn(size, size, device=device, dtype=dtype)
    out = torch.empty_like(a)

    def run() -> None:
        torch.set_float32_matmul_precision("high" if name == "tf32" else "highest")
        torch.mm(a, b, out=out)

    return run


def _fp8_product(size: int, device: str) -> Callable[[], Any]:
    import torch

    a = torch.randn(size, size, device=device).to(torch.float8_e4m3fn)
    b = torch.randn(size, size, device=device).to(torch.float8_e4m3fn).t()
    one = torch.ones((), device=device)
    return lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)


def _seconds_each(run: Callable[[], Any], device: str) -> float:
    """Median over batches of runs; a batch is long enough for the clock."""
    for _ in range(_WARM_UPS):
        run()
    _wait(device)
    began = time.perf_counter()
    run()
    _wait(device)
    batch = max(1, int(0.05 / max(time.perf_counter() - began, 1e-6)))
    times: list[float] = []
    end = time.perf_counter() + _SECONDS
    while len(times) < 3 or time.perf_counter() < end:
        began = time.perf_counter()
        for _ in range(batch):
            run()
        _wait(device)
        times.append((time.perf_counter() - began) / batch)
    return statistics.median(times)


def _wait(device: str) -> None:
    if device != "cpu":
        import torch

        torch.cuda.synchronize(device)


def _jpeg() -> bytes:
    """A one-megapixel JPEG with the detail of a photograph: a random walk, not noise or flat."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    side = 1024
    steps = rng.normal(0, 3, (side, side, 3))
    walk = np.cumsum(steps, axis=0) / 4 + np.cumsum(steps, axis=1) / 4
    pixels = (walk - walk.min()) / (walk.max() - walk.min()) * 255
    stream = io.BytesIO()
    Image.fromarray(pixels.astype(np.uint8)).save(stream, "JPEG", quality=90)
    return stream.getvalue()


WHAT: dict[str, Callable[..., dict[str, Any]]] = {
    "devices": devices,
    "matmul": matmul,
    "copies": copies,
    "decode": decode,
}


def main(argv: list[str]) -> int:
    """``WHAT [DEVICE]``; prints one JSON object."""
    print(json.dumps(WHAT[argv[0]](*map(int, argv[1:]))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
