"""Reads of device values (``.item()``, ``.tolist()``, ``.cpu()`` …), counted by source line.

Armed only in a process whose tensors can be on a CUDA device, and only while it is measured.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from _brim_hooks import recorder as _r
from _brim_hooks.recorder import Recorder

now = _r.now
_NAMES = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
_originals: dict[str, Any] = {}
_tensor: Any = None


def patch_tensor(module: Any) -> None:
    """Remember the class; :func:`arm` patches it once a device is in use."""
    global _tensor
    _tensor = module.Tensor


def arm() -> None:
    torch = sys.modules.get("torch")
    if _originals or _tensor is None or torch is None or not torch.cuda.is_initialized():
        return
    for name in _NAMES:
        own = _tensor.__dict__.get(name)  # None: inherited from the C base class
        _originals[name] = own
        setattr(_tensor, name, _wrap(getattr(_tensor, name), torch))


def disarm() -> None:
    while _originals:
        name, own = _originals.popitem()
        if own is None:
            delattr(_tensor, name)
        else:
            setattr(_tensor, name, own)


def _wrap(original: Callable[..., Any], torch: Any) -> Callable[..., Any]:
    @functools.wraps(original)
    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        rec = _r.current
        if rec is None or not self.is_cuda or torch.compiler.is_compiling() or not rec.mine():
            return original(self, *args, **kwargs)
        t = now()
        try:
            return original(self, *args, **kwargs)
        finally:
            _note(rec, now() - t)

    return read


@_r.guarded
def _note(rec: Recorder, seconds: float) -> None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and _is_library(frame.f_code.co_filename):
        frame = frame.f_back
    if frame is None:
        frame = sys._getframe(2)
    place = "read|%s:%d" % (frame.f_code.co_filename, frame.f_lineno)
    entry = rec.lines.setdefault(place, [0, 0.0])
    entry[0] += 1
    entry[1] += seconds
    rec.add("reads_n", 1)
    rec.add("reads_s", seconds)


def _is_library(name: str) -> bool:
    return "/torch/" in name or "_brim_hooks" in name
