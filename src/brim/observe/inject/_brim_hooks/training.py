"""Steps, backward, evaluation, checkpoints, caches, compilation, collectives."""

from __future__ import annotations

import functools
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from _brim_hooks import losses, window
from _brim_hooks import recorder as _r

now = _r.now
STEADY = 10  # steps after which a device that is used at all is in use
LOOK = 7  # backward passes from one look for anomaly mode to the next
CLOCKS = 8  # optimizers of a process whose steps are told apart
REBUILT = 4  # backward passes after which DDP has built its buckets anew, in the order of arrival
_data_parallel: weakref.WeakSet[Any] = weakref.WeakSet()
_distributes = False  # cheaper to ask than the set
_described: dict[int, dict[str, Any]] = {}


def timed(
    name: str,
    phase: str,
    *,
    starts: bool = False,
    after: Callable[[_r.Recorder, tuple[Any, ...]], None] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Wrap a function: its seconds on the training thread go to the sum ``name``.

    ``starts``: a call is a sign of training, and makes the recorder.  Nested calls of functions
    with the same name count once.  ``after`` gets the recorder and the call's arguments.
    """

    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        depth = threading.local()

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _r.off or getattr(depth, "inside", False) or _compiling():
                return original(*args, **kwargs)
            rec = _r.current or (_r.recorder() if starts else None)
            if rec is None or rec.thread != threading.get_ident():
                return original(*args, **kwargs)
            depth.inside, outer, t = True, rec.phase, now()
            rec.phase = phase
            try:
                return original(*args, **kwargs)
            finally:
                depth.inside, rec.phase = False, outer
                _took(rec, name, now() - t, after, args)

        return call

    return wrap


@_r.guarded
def _took(rec: _r.Recorder, name: str, seconds: float, after: Any, args: tuple[Any, ...]) -> None:
    rec.sums[name] += seconds
    rec.sums[name + "_n"] += 1
    if after is not None:
        after(rec, args)


def _compiling() -> bool:
    """True while torch.compile traces the caller: then the original must be all that it sees."""
    compiler = getattr(sys.modules.get("torch"), "compiler", None)
    return compiler is not None and compiler.is_compiling()


class _Optimizers:
    """Which optimizer is stepping; wrappers of optimizers nest, and only the outermost counts."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {}
        self.open: list[int] = []
        self.hosted: dict[int, bool] = {}  # asked at its first step, and when all has settled
        self.started, self.outer = 0.0, ""

    def before(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        rec = _r.current or _r.recorder()
        if rec is None:
            return
        if id(optimizer) in self.open:
            self.open.clear()  # the last step raised before its post hook
        self.open.append(id(optimizer))
        if len(self.open) == 1:
            self.started, self.outer, rec.phase = now(), rec.phase, "optimizer"

    def after(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        del args, kwargs
        rec = _r.current
        if rec is None or id(optimizer) not in self.open:
            return
        del self.open[self.open.index(id(optimizer)) :]
        if self.open:
            return
        rec.phase = self.outer
        rec.sums["optimizer"] += now() - self.started
        if rec.n == STEADY or id(optimizer) not in self.hosted:
            self.hosted[id(optimizer)] = _updates_on_host(optimizer)
        if self.hosted[id(optimizer)]:
            rec.add("host_optimizer", now() - self.started)
        if rec.thread != threading.get_ident():
            rec.train_on(threading.get_ident())
        name = self.names.setdefault(id(optimizer), "opt%d" % len(self.names))
        if len(self.names) > CLOCKS and name != "opt0":
            return  # an optimizer a parameter: the first one gives the rhythm
        rec.paced = True
        rec.tick(name)
        window.after_step(rec)


def _updates_on_host(optimizer: Any) -> bool:
    """A CUDA job whose optimizer updates tensors in host memory: its states are offloaded."""
    torch = sys.modules["torch"]
    if not torch.cuda.is_initialized():
        return False
    first = next((p for g in optimizer.param_groups for p in g["params"]), None)
    return first is not None and first.device.type == "cpu"


def patch_optimizer(module: Any) -> None:
    steps = _Optimizers()
    module.register_optimizer_step_pre_hook(_r.guarded(steps.before))
    module.register_optimizer_step_post_hook(_r.guarded(steps.after))
    _r.seen("torch")
    _r.watch_anyway()


def patch_backward(module: Any) -> None:
    wrap = timed("backward", "backward", starts=True, after=_after_backward)
    module.backward = wrap(module.backward)


def _after_backward(rec: _r.Recorder, args: tuple[Any, ...]) -> None:
    """``args`` of ``torch.autograd.backward(tensors, …)``."""
    rec.backwards += 1
    if _r.options.get("losses"):
        losses.keep(rec, args)
    # around the forward and backward pass alone, where no look after a step sees it
    if rec.backwards % LOOK == 1 and sys.modules["torch"].is_anomaly_enabled():
        rec.sums["debug"] = ["torch.autograd.detect_anomaly"]
    for module in list(_data_parallel) if _distributes else ():
        rec.add("synced_backwards", int(bool(module.require_backward_grad_sync)))
        if rec.backwards in (1, REBUILT):
            _described[id(module)] = _describe(module)
            rec.sums["ddp"] = data_parallel()
    if not rec.paced and rec.clocks.keys() <= {"backward"}:
        rec.tick("backward")  # until an optimizer or a loader gives the rhythm
        window.after_step(rec)


class _Evaluation:
    """Time between ``model.eval()`` and ``model.train()`` without a backward in between."""

    def __init__(self) -> None:
        self.since: dict[int, tuple[float, int]] = {}
        self.inside = False

    def switched(self, module: Any, mode: bool) -> None:
        rec = _r.current
        if rec is None or not rec.mine():
            return
        if not mode:
            self.since = {id(module): (now(), rec.backwards)}
            rec.evaluating = rec.backwards  # until the next backward, or train()
            return
        rec.evaluating = None
        t, backwards = self.since.pop(id(module), (None, 0))
        if t is not None and backwards == rec.backwards:
            rec.add("evaluation", now() - max(t, rec.last))
            rec.add("evaluation_n", 1)


def patch_module(module: Any) -> None:
    original, state = module.Module.train, _Evaluation()
    switched = _r.guarded(state.switched)

    @functools.wraps(original)
    def train(self: Any, mode: bool = True) -> Any:
        if _r.current is None or state.inside:
            return original(self, mode)
        state.inside = True  # children are switched through the same method
        try:
            return original(self, mode)
        finally:
            state.inside = False
            switched(self, mode)

    module.Module.train = train


def _time(module: Any, names: Iterable[str], kind: str) -> None:
    """Wrap functions of a module, and the copies that its package has of them: it has some only
    where the hooks are armed after the import."""
    package = sys.modules.get(module.__name__.rpartition(".")[0])
    for name in names:
        original = getattr(module, name, None)
        if original is not None:
            setattr(module, name, timed(kind, kind)(original))
            if getattr(package, name, None) is original:
                setattr(package, name, getattr(module, name))


def patch_save(module: Any) -> None:
    _time(module, ("save",), "save")


def patch_safetensors(module: Any) -> None:
    _time(module, ("save_file", "save_model"), "save")


def patch_cuda_memory(module: Any) -> None:
    _time(module, ("empty_cache",), "flush")


def patch_dynamo(module: Any) -> None:
    """Compilation as dynamo itself brackets it; Triton's autotuning and lazy backward included."""
    state: dict[str, Any] = {}

    def start(args: Any) -> None:
        del args
        rec = _r.current
        if rec is not None and rec.mine():
            state["t"], state["outer"], rec.phase = now(), rec.phase, "compile"

    def end(args: Any) -> None:
        del args
        rec, t = _r.current, state.pop("t", None)
        if rec is not None and t is not None:
            rec.phase = state["outer"]
            rec.add("compile", now() - t)
            rec.add("compile_n", 1)

    handler = module.callback_handler
    handler.register_start_callback(_r.guarded(start))
    handler.register_end_callback(_r.guarded(end))


_COLLECTIVES = (
    "all_reduce", "reduce", "broadcast", "barrier", "all_gather", "all_gather_into_tensor",
    "reduce_scatter", "reduce_scatter_tensor", "all_to_all", "all_to_all_single", "gather",
    "scatter", "all_gather_object", "broadcast_object_list", "gather_object",
)  # fmt: skip


def patch_collectives(module: Any) -> None:
    _time(module, _COLLECTIVES, "comm")


def patch_ddp(module: Any) -> None:
    """Remember DistributedDataParallel instances: their reducers are not seen from Python."""
    original = module.DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        global _distributes
        original(self, *args, **kwargs)
        _data_parallel.add(self)
        if not _distributes:
            _measure_waits(sys.modules["torch"].autograd)
        _distributes = True
        _described[id(self)] = {}

    module.DistributedDataParallel.__init__ = init


def _measure_waits(autograd: Any) -> None:
    """The CPU time of backward: with DDP the rest of its time are waits for other ranks."""
    original = autograd.backward

    @functools.wraps(original)
    def backward(*args: Any, **kwargs: Any) -> Any:
        begin = time.thread_time()
        try:
            return original(*args, **kwargs)
        finally:
            rec = _r.current
            if rec is not None and rec.mine():
                rec.add("backward_cpu", time.thread_time() - begin)

    autograd.backward = backward


def data_parallel() -> list[dict[str, Any]]:
    """[{buckets, parameters, bytes, find_unused}] of the job's DDP modules, as they were in the
    first steps: by the end of the program they may be gone."""
    return [entry for entry in _described.values() if entry]


def _describe(module: Any) -> dict[str, Any]:
    parameters = [p for p in module.parameters() if p.requires_grad]
    entry = {
        "parameters": len(parameters),
        "bytes": sum(p.numel() * p.element_size() for p in parameters),
    }
    try:
        logged = module._get_ddp_logging_data()
        sizes = logged.get("rebuilt_bucket_sizes") or logged.get("bucket_sizes") or ""
        entry["buckets"] = len(str(sizes).split(","))
        entry["find_unused"] = bool(logged.get("find_unused_parameters", 0))
    except Exception as error:
        _r.failed("ddp", error)
    return entry
