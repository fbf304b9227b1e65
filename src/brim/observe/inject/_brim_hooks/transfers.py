"""Reads of device values (``.item()``, ``.tolist()``, ``.cpu()`` …), counted by source line.

Armed only in a process whose tensors can be on a CUDA device, and only while it is measured.

A warning that torch raises in a read names the innermost Python frame, which is the wrapper here;
what is shown or caught gets the program's own line back.  Filters by module and the counting of
repetitions per line happen before that, in C, and see this module.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from _brim_hooks import recorder as _r
from _brim_hooks.recorder import Recorder

now = _r.now
_NAMES = ("item", "tolist", "cpu", "numpy", "__bool__", "__int__", "__float__", "__index__")
_originals: dict[str, Any] = {}
_tensor: Any = None
_show: Any = None


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
    _arm_warnings()


def disarm() -> None:
    global _show
    if _show is not None:
        shown, before = _show
        if getattr(warnings, "_showwarnmsg", None) is shown:
            setattr(warnings, "_showwarnmsg", before)  # noqa: B010 - private, unknown to stubs
        _show = None
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


_READ = _wrap(len, None).__code__
"""What every wrapper runs."""


def _arm_warnings() -> None:
    """``warnings`` in C and in Python calls this one function for all that passes the filters."""
    global _show
    before = getattr(warnings, "_showwarnmsg", None)
    if before is None or _show is not None:
        return

    @functools.wraps(before)
    def shown(message: Any) -> Any:
        if message.filename == _READ.co_filename:
            _blame_caller(message)
        return before(message)

    _show = (shown, before)
    setattr(warnings, "_showwarnmsg", shown)  # noqa: B010


@_r.guarded
def _blame_caller(message: Any) -> None:
    """The frame beyond the read that the warning was raised in."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _READ:
        frame = frame.f_back
    if frame is not None and frame.f_back is not None:
        frame = frame.f_back
        message.filename, message.lineno = frame.f_code.co_filename, frame.f_lineno


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
