"""Knobs as environment variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brim.tune.knobs import Settings, Value

_NCCL: Final = {
    "nccl.algo": "NCCL_ALGO",
    "nccl.proto": "NCCL_PROTO",
    "nccl.nchannels": "NCCL_MIN_NCHANNELS",
}
_DEBUG: Final = {
    "CUDA_LAUNCH_BLOCKING": "0",
    "TORCH_DISTRIBUTED_DEBUG": "OFF",
    "TORCH_CPP_LOG_LEVEL": "WARNING",
    "NCCL_DEBUG": "WARN",
    "PYTHONDEVMODE": "",
    "PYTHONTRACEMALLOC": "0",
    "PYTHONASYNCIODEBUG": "",
    "PYTHONMALLOC": "pymalloc",
}
"""Variable → its quiet value."""
_QUIET: Final = ("", "0", "OFF", "WARN", "WARNING", "ERROR", "VERSION", "DEFAULT", "PYMALLOC")
_SEGMENTS: Final = "expandable_segments"


def variables(settings: Settings, now: Mapping[str, str]) -> dict[str, str]:
    """What to set, of a job whose environment is ``now``."""
    found = {name: str(settings[id]) for id, name in _NCCL.items() if id in settings}
    if "allocator.expandable_segments" in settings:
        found |= allocator(settings["allocator.expandable_segments"], now)
    if settings.get("debug") is False:
        found |= debug_off(now)
    return found


def debug_off(now: Mapping[str, str]) -> dict[str, str]:
    """Only what is on."""
    return {
        name: quiet for name, quiet in _DEBUG.items() if now.get(name, "").upper() not in _QUIET
    }


def allocator(value: Value, now: Mapping[str, str]) -> dict[str, str]:
    """The job's other allocator options stay; the variable is the one that it uses."""
    name = "PYTORCH_ALLOC_CONF" if "PYTORCH_ALLOC_CONF" in now else "PYTORCH_CUDA_ALLOC_CONF"
    options = [o for o in now.get(name, "").split(",") if o and not o.startswith(f"{_SEGMENTS}:")]
    return {name: ",".join([*options, f"{_SEGMENTS}:{bool(value)}"])}
