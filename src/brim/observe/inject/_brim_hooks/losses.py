"""The loss of each step: the value on which ``backward()`` was called.

A copy of it stays where it is, on the device, and is read once, when measuring is over: no step
waits for it.  Only ``brim tune`` asks for it.
"""

from __future__ import annotations

import math
from typing import Any

from _brim_hooks import recorder as _r

MOST = 4096  # values; a device keeps 512 bytes for each
_kept: list[tuple[int, Any]] = []


def keep(rec: _r.Recorder, arguments: tuple[Any, ...]) -> None:
    """Of ``torch.autograd.backward(tensors, …)``: what is no single number is no loss."""
    if len(_kept) >= MOST:
        return
    given: Any = arguments[0] if arguments else None
    single = isinstance(given, (tuple, list)) and len(given) == 1
    value: Any = given[0] if single else given
    if hasattr(value, "numel") and value.numel() == 1:
        # a clone: the memory of a replayed graph holds the next step's value soon
        _kept.append((rec.n, value.detach().clone()))


@_r.guarded
def write(appender: _r.Appender) -> None:
    """One line a step: ``{"n": step, "loss": sum over its backward passes}``."""
    sums: dict[int, float] = {}
    for n, value in _kept:
        sums[n] = sums.get(n, 0.0) + float(value)
    _kept.clear()
    for n, loss in sums.items():
        appender.line({"n": n, "loss": loss if math.isfinite(loss) else None})
    appender.close()
