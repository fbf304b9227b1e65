"""Quantities as people read them; absent is not zero."""

from __future__ import annotations

_SI = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def duration(seconds: float) -> str:
    """``0.0000123`` → ``12.3 µs``; ``4000`` → ``1 h 07 min``."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    for limit, factor, unit in ((1e-6, 1e9, "ns"), (1e-3, 1e6, "µs"), (1.0, 1e3, "ms")):
        if seconds < limit:
            return f"{seconds * factor:.3g} {unit}"
    if seconds < 120:
        return f"{seconds:.3g} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def size(n_bytes: float) -> str:
    """``3_145_728`` → ``3.0 MiB``."""
    for factor, unit in _BINARY:
        if abs(n_bytes) >= factor:
            return f"{n_bytes / factor:.1f} {unit}"
    return f"{n_bytes:.0f} B"


def rate(per_second: float, unit: str) -> str:
    """``7.9e14, "FLOP"`` → ``790 TFLOP/s``."""
    for factor, prefix in _SI:
        if abs(per_second) >= factor:
            return f"{per_second / factor:.3g} {prefix}{unit}/s"
    return f"{per_second:.3g} {unit}/s"


def percent(share: float) -> str:
    """A share of one: ``0.0312`` → ``3.1 %``."""
    return f"{share * 100:.1f} %"
