"""The training process's side of a torch DataLoader."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from _brim_hooks import batches, window
from _brim_hooks import recorder as _r
from _brim_hooks.recorder import Recorder

now = _r.now
_inside = threading.local()


def _outermost() -> Recorder | None:
    """The recorder, when this thread trains and is not already inside a loader."""
    if _r.off or getattr(_inside, "loader", False):
        return None
    if _worker_pids and os.getpid() in _worker_pids:
        return None
    rec = _r.current or _r.recorder()
    return rec if rec is not None and rec.thread == threading.get_ident() else None


_worker_pids: set[int] = (
    set()
)  # filled in a loader worker by itself: its loaders are not the loop's


def patch(module: Any) -> None:
    base = module._BaseDataLoaderIter
    base.__next__ = _wrap_next(base.__next__, module)
    module.DataLoader.__iter__ = _wrap_iter(module.DataLoader.__iter__)
    workers = module._MultiProcessingDataLoaderIter
    workers._shutdown_workers = _wrap_shutdown(workers._shutdown_workers)
    _patch_unpickling()


def _wrap_next(original: Callable[[Any], Any], module: Any) -> Callable[[Any], Any]:
    single = module._SingleProcessDataLoaderIter

    @functools.wraps(original)
    def __next__(self: Any) -> Any:
        rec = _outermost()
        if rec is None:
            return original(self)
        _inside.loader, outer, t = True, rec.phase, now()
        cpu = rec.cpu() if rec.asks() else None
        rec.phase = "input"
        ready = _ready(self)
        try:
            batch = original(self)
        finally:
            _inside.loader, rec.phase = False, outer
            _account(rec, self, now() - t, cpu, isinstance(self, single))
        _received(rec, ready, batch)
        return batch

    return __next__


def _ready(iterator: Any) -> int | None:
    """Batches that lie ready before the loop asks; None where that is not known."""
    try:
        tasks = iterator._task_info
        return sum(len(v) == 2 for v in list(tasks.values())) + int(iterator._data_queue.qsize())
    except Exception:
        return None


@_r.guarded
def _account(
    rec: Recorder, iterator: Any, wall: float, begun: "float | None", in_this_process: bool
) -> None:
    """``begun``: CPU time of the thread when it began; None where it was not asked for.  Then a
    short wait computes, one like the last that was measured does so as much, and a much longer one
    has come as a surprise: it is what it is called."""
    if begun is not None:
        cpu = rec.cpu() - begun
        rec.asked = (wall, cpu)
    elif _r.SHORT <= wall < 2 * rec.asked[0]:
        cpu = wall * rec.asked[1] / rec.asked[0]
    else:
        cpu = wall if wall < _r.SHORT or in_this_process else 0.0
    rec.waited = wall
    if rec.evaluating is not None and rec.evaluating == rec.backwards:
        rec.add("evaluation_input", wall)
        return
    rec.sums["input_wait"] += wall
    rec.sums["input_cpu"] += cpu
    if in_this_process:
        rec.add("input_main", wall)
    if not getattr(iterator, "_brim_seen", False):
        iterator._brim_seen = True
        rec.add("input_first", wall)


@_r.guarded
def _received(rec: Recorder, ready: int | None, batch: Any) -> None:
    rec.sums["batches"] += 1
    rec.loaded = True
    if ready is not None:
        rec.sums["ready"] += ready
    if rec.batches_seen < batches.MOST:
        t = now()
        batches.received(rec, batch)
        rec.add("own", now() - t)
    if not rec.paced:
        rec.tick("loader")
        window.after_step(rec)


def _wrap_iter(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def __iter__(self: Any) -> Any:
        rec = _outermost()
        if rec is None:
            return original(self)
        _inside.loader, outer, t = True, rec.phase, now()
        rec.phase = "input"
        before = _pids(getattr(self, "_iterator", None))
        iterator = None
        try:
            iterator = original(self)
            return iterator
        finally:
            _inside.loader, rec.phase = False, outer
            _iterated(rec, now() - t, _pids(iterator) - before, iterator)

    return __iter__


@_r.guarded
def _iterated(rec: Recorder, wall: float, started: set[int], iterator: Any) -> None:
    if rec.evaluating is not None and rec.evaluating == rec.backwards:
        rec.add("evaluation_input", wall)
        return
    rec.add("input_wait", wall)
    rec.add("input_iter", wall)
    rec.add("epochs", 1)
    if started:
        rec.add("worker_starts", len(started))
    if iterator is not None:
        iterator._brim_seen = False  # a persistent iterator begins a new epoch


def _pids(iterator: Any) -> set[int]:
    return {w.pid for w in getattr(iterator, "_workers", ())}


def _wrap_shutdown(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(original)
    def _shutdown_workers(self: Any) -> Any:
        t = now()
        try:
            return original(self)
        finally:
            _shut_down(now() - t)

    return _shutdown_workers


@_r.guarded
def _shut_down(wall: float) -> None:
    rec = _r.current
    if rec is not None and rec.mine():
        rec.add("input_shutdown", wall)


def _patch_unpickling() -> None:
    """Seconds and bytes of batches rebuilt in this process, on whichever thread."""
    from multiprocessing.reduction import ForkingPickler

    original = ForkingPickler.loads

    def loads(data: Any, *args: Any, **kwargs: Any) -> Any:
        rec = _r.current
        if rec is None:
            return original(data, *args, **kwargs)
        t = now()
        try:
            return original(data, *args, **kwargs)
        finally:
            _rebuilt(rec, now() - t, data)

    ForkingPickler.loads = staticmethod(loads)


@_r.guarded
def _rebuilt(rec: Recorder, wall: float, data: Any) -> None:
    mine = rec.thread == threading.get_ident()
    rec.sums["rebuild" if mine else "rebuild_other"] += wall
    rec.sums["rebuild_bytes"] += len(data)
