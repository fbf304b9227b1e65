"""What each host thread was doing at any moment, and which call launched which device event."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from brim.diagnose.trace.kernels import copy_direction, is_pageable
from brim.diagnose.trace.timeline import Bool, Int64, Spans, union, unite
from brim.record.kineto import DeviceKind, HostKind, Trace

UInt8 = npt.NDArray[np.uint8]


class State(IntEnum):
    """In order of precedence: where several hold, the first names the moment."""

    COMPILE = 0
    SAVE = 1
    """Checkpoint, evaluation, logging."""
    GC = 2
    FLUSH = 3
    """``empty_cache`` or ``gc.collect`` called by the program."""
    INPUT_MAIN = 4
    """Loading or preprocessing in this process."""
    INPUT_WAIT = 5
    """Waiting for loader workers."""
    TRANSFER = 6
    """A blocking copy to the device, or a large one from it, and the sync that belongs to it."""
    READ = 7
    """A copy of a device value to the host, and the sync that belongs to it."""
    SYNC = 8
    MEMORY = 9
    """Allocating or freeing device memory."""
    SLOW_CALL = 10
    """A launch that takes :data:`SLOW_NS` or longer: the first of its module, most often."""
    CALL = 11
    """Any other call of the runtime: launches above all."""
    OP = 12
    PYTHON = 13
    NOTHING = 14

    @property
    def label(self) -> str:
        return _LABELS[self]


_LABELS = {
    State.COMPILE: "compile", State.SAVE: "save", State.GC: "gc", State.FLUSH: "memory",
    State.INPUT_MAIN: "input", State.INPUT_WAIT: "input", State.TRANSFER: "copy",
    State.READ: "sync", State.SYNC: "sync", State.MEMORY: "memory", State.SLOW_CALL: "launch",
    State.CALL: "launch", State.OP: "op", State.PYTHON: "python", State.NOTHING: "untraced",
}  # fmt: skip

SLOW_NS = 5_000_000
"""A launch call takes 5 to 50 µs; from 5 ms on it loads a module or waits for a full queue."""
SMALL_BYTES = 1 << 20
"""A copy to the host of at most this reads values; a larger one moves data."""
_FOLLOWS_NS = 50_000
"""torch waits for a blocking copy right after issuing it."""

_INPUT_FRAME = re.compile(
    r"(?:^|/)transformers/(?:image_|video_|feature_|processing_|tokenization_|"
    r"models/[^/]+/(?:image_|video_|processing_|feature_|tokenization_))"
    r"|(?:^|/)(?:PIL|cv2|decord|av|torchcodec|albumentations|librosa|soundfile|datasets)/"
    r"|(?:^|/)torchvision/(?:transforms|io|datasets)/"
    r"|(?:^|/)torch/utils/data/_utils/(?:fetch|collate)\.py"
    r"|(?:^|/)qwen_vl_utils/"
    r"|\): (?:collate_fn|default_collate|data_collator|preprocess|read_video\w*|load_image\w*)$"
)
_WAIT_FRAME = re.compile(
    r"torch/utils/data/dataloader\.py\(\d+\): (?:_try_get_data|_get_data)$|"
    r"multiprocessing/queues\.py\(\d+\): get$"
)
_COMPILE_FRAME = re.compile(
    r"torch/_dynamo/(?:convert_frame|symbolic_convert|output_graph)\.py"
    r"|torch/_inductor/(?:async_compile|codecache|graph|scheduler)\.py\(\d+\): "
    r"(?:wait|compile\w*|load|codegen|run)$"
    r"|triton/compiler/compiler\.py\(\d+\): compile$|triton/runtime/jit\.py\(\d+\): _do_compile$"
    r"|torch/utils/cpp_extension\.py"
)
_SAVE_FRAME = re.compile(
    r"\): (?:save|_?save_checkpoint|save_file|save_model|save_pretrained|save_state(?:_dict)?)$"
    r"|trainer\.py\(\d+\): (?:evaluate|evaluation_loop|prediction_loop)$"
    r"|(?:^|/)(?:wandb|mlflow|tensorboard|tensorboardX)/"
)
_FLUSH_FRAME = re.compile(r"\): empty_cache$|cuda_emptyCache|<built-in function collect>")

_LOADER = re.compile(
    r"DataLoader|data_?load|load_batch|next_batch|get_batch|fetch_batch|fetch_data", re.IGNORECASE
)
_COMPILE_SPAN = re.compile(
    r"\(dynamo_timed\)|entire_frame_compile|compile_inner|backend_compile|compile_fx|"
    r"inductor_compile|triton_compile|CUDAGraph.*(?:record|warmup)",
    re.IGNORECASE,
)
_SAVE_SPAN = re.compile(
    r"\bsave|save_|checkpoint_(?:write|io)|\beval(?:uat\w*)?\b|validation|\blogging\b",
    re.IGNORECASE,
)
_GC_SPAN = re.compile(r"\bgc\b|garbage", re.IGNORECASE)
_FLUSH_SPAN = re.compile(r"empty_cache|clear_cache|gc\.collect", re.IGNORECASE)

_SYNC_CALL = re.compile(r"^(?:cuda|hip|cu)(?:Stream|Device|Event|Ctx)Synchronize")
_MEMORY_CALL = re.compile(
    r"^(?:cuda|hip|cu)(?:Malloc|Free|Mem(?:Alloc|Free|Create|Map|Unmap|Release|SetAccess|Address))"
)
_TRIVIAL_CALL = re.compile(
    r"IsCapturing|GetLastError|PeekAtLastError|GetErrorString|GetDevice|DeviceGet|EventQuery|"
    r"EventRecord|GetAttribute|StreamGet"
)


def python_state(frame: str) -> State:
    """What a Python frame does, by its file and function."""
    if not frame.startswith("nn.Module"):
        if _COMPILE_FRAME.search(frame):
            return State.COMPILE
        if _SAVE_FRAME.search(frame):
            return State.SAVE
        if _FLUSH_FRAME.search(frame):
            return State.FLUSH
        if _WAIT_FRAME.search(frame):
            return State.INPUT_WAIT
        if _INPUT_FRAME.search(frame):
            return State.INPUT_MAIN
    return State.PYTHON


def annotation_state(name: str) -> State:
    """What a ``record_function`` span (or an operation of the loader) says."""
    if _LOADER.search(name):
        waits = "_MultiProcessing" in name or "DataLoader" not in name
        return State.INPUT_WAIT if waits else State.INPUT_MAIN
    for pattern, state in (
        (_COMPILE_SPAN, State.COMPILE), (_FLUSH_SPAN, State.FLUSH),
        (_GC_SPAN, State.GC), (_SAVE_SPAN, State.SAVE),
    ):  # fmt: skip
        if pattern.search(name):
            return state
    return State.NOTHING


def _op_state(name: str) -> State:
    """An operation; early traces file annotations under operations, too."""
    if "::" in name or "Backward" in name:
        return State.OP
    if name.startswith(("ProfilerStep", "Optimizer.", "## ")):
        return State.NOTHING
    state = annotation_state(name)
    return state if state in (State.INPUT_MAIN, State.INPUT_WAIT, State.COMPILE) else State.OP


def _call_state(name: str) -> State:
    if _SYNC_CALL.search(name):
        return State.SYNC
    return State.MEMORY if _MEMORY_CALL.search(name) else State.CALL


@dataclass(frozen=True, slots=True)
class Blocking:
    """Calls in which the host waited for the device, by end; shape (calls,) each."""

    start: Int64
    end: Int64
    state: UInt8
    row: Int64
    """Of the host's events."""


class HostSide:
    """The host threads of one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.events = trace.host

    @cached_property
    def launch(self) -> Int64:
        """Device event → the host's row that launched it, or -1; shape (device events,)."""
        host, device = self.events, self.trace.device
        calls = np.flatnonzero((host.kind == HostKind.RUNTIME) & (host.correlation >= 0))
        calls = calls[np.argsort(host.correlation[calls], kind="stable")]
        if not len(calls):
            return np.full(len(device), -1, np.int64)
        ids = host.correlation[calls]
        at = np.searchsorted(ids, device.correlation)
        found = (at < len(ids)) & (ids[np.minimum(at, len(ids) - 1)] == device.correlation)
        return np.where(found & (device.correlation >= 0), calls[np.minimum(at, len(ids) - 1)], -1)

    def begins_in(self, rows: Int64, spans: Mapping[int, Spans]) -> Bool:
        """Whether each event (a row, or -1 for none) begins inside its thread's ``spans``; shape
        as ``rows``."""
        at = np.maximum(rows, 0)
        out = np.zeros(len(rows), np.bool_)
        for thread, inside in spans.items():
            mine = (rows >= 0) & (self.events.thread[at] == thread)
            out[mine] = inside.contains(self.events.start[rows[mine]])
        return out

    @cached_property
    def first_launch(self) -> int:
        """Start of the first launch in the capture, ns."""
        rows = self.launch[self.launch >= 0]
        return int(self.events.start[rows].min()) if len(rows) else 0

    @cached_property
    def state(self) -> UInt8:
        """:class:`State` per host event, shape (host events,)."""
        host, names = self.events, self.trace.names
        state = np.full(len(host), State.NOTHING, np.uint8)
        of_kind: dict[HostKind, Callable[[str], State]] = {
            HostKind.OP: _op_state,
            HostKind.ANNOTATION: annotation_state,
            HostKind.PYTHON: python_state,
            HostKind.RUNTIME: _call_state,
        }
        for kind, rule in of_kind.items():
            rows = np.flatnonzero(host.kind == kind)
            used, inverse = np.unique(host.name[rows], return_inverse=True)
            states = np.array([rule(names[index]) for index in used], np.uint8)
            state[rows] = states[inverse] if len(used) else state[rows]
        self._copies(state)
        slow = (host.end - host.start >= SLOW_NS) & (state == State.CALL)
        state[slow] = State.SLOW_CALL
        return state

    def _copies(self, state: UInt8) -> None:
        """Tell copies that block from those that do not, and syncs that belong to a copy."""
        device = self.trace.device
        copies = np.flatnonzero((device.kind == DeviceKind.MEMCPY) & (self.launch >= 0))
        direction = [copy_direction(name) for name in self.trace.names]
        crossing: set[int] = set()
        for row, index in zip(self.launch[copies].tolist(), copies.tolist(), strict=True):
            way = direction[device.name[index]]
            if way not in ("h2d", "d2h"):
                continue
            crossing.add(row)
            if way == "d2h":
                large = int(device.n_bytes[index]) > SMALL_BYTES
                state[row] = State.TRANSFER if large else State.READ
            elif is_pageable(self.trace.names[device.name[index]]):
                state[row] = State.TRANSFER
        self._follow(state, crossing)

    def _follow(self, state: UInt8, copies: set[int]) -> None:
        """A sync right behind a copy on the same thread waits for that copy."""
        host, names = self.events, self.trace.names
        trivial = np.array([bool(_TRIVIAL_CALL.search(name)) for name in names], np.bool_)
        rows = np.flatnonzero((host.kind == HostKind.RUNTIME) & ~trivial[host.name])
        for thread in np.unique(host.thread[rows[state[rows] == State.SYNC]]):
            of_thread = rows[host.thread[rows] == thread]
            for at in np.flatnonzero(state[of_thread[1:]] == State.SYNC) + 1:
                sync, before = int(of_thread[at]), int(of_thread[at - 1])
                near = host.start[sync] - host.end[before] <= _FOLLOWS_NS
                if near and before in copies:
                    to_device = state[before] in (State.TRANSFER, State.CALL)
                    state[sync] = State.TRANSFER if to_device else State.READ

    @cached_property
    def blocking(self) -> Blocking:
        host = self.events
        waits = (State.SYNC, State.READ, State.TRANSFER)
        rows = np.flatnonzero(np.isin(self.state, waits) & (host.kind == HostKind.RUNTIME))
        rows = rows[np.argsort(host.end[rows], kind="stable")]
        return Blocking(host.start[rows], host.end[rows], self.state[rows], rows)

    @cached_property
    def launching_threads(self) -> list[int]:
        """Threads that feed a device (most launches first, then who launched first; at most 16)
        and the loop's thread."""
        launches = np.sort(self.launch[self.launch >= 0])
        threads, first, counts = np.unique(
            self.events.thread[launches], return_index=True, return_counts=True
        )
        feeding = [int(t) for t in threads[np.lexsort((first, -counts))][:16]]
        loop = self.loop_thread
        return feeding if loop is None or loop in feeding else [*feeding, loop]

    @cached_property
    def loop_thread(self) -> int | None:
        """The thread that runs the training loop, by its step, loader or optimizer spans."""
        names, host = self.trace.names, self.events
        for start in ("ProfilerStep", "enumerate(DataLoader)", "Optimizer.step"):
            wanted = [index for index, name in enumerate(names) if name.startswith(start)]
            rows = np.flatnonzero(np.isin(host.name, wanted))
            if len(rows):
                return int(host.thread[rows[0]])
        return None

    @cached_property
    def own(self) -> dict[int, list[Spans]]:
        """Thread → for each :class:`State` up to PYTHON the moments it names, exclusively."""
        return {thread: self._paint(thread) for thread in self.launching_threads}

    def _paint(self, thread: int) -> list[Spans]:
        host = self.events
        rows = np.flatnonzero((host.thread == thread) & (self.state < State.NOTHING))
        rows = rows[np.argsort(self.state[rows], kind="stable")]  # by state, then by start
        edges = np.searchsorted(self.state[rows], np.arange(State.NOTHING + 1))
        layers = [
            union(host.start[rows[low:high]], host.end[rows[low:high]])
            for low, high in pairwise(edges.tolist())
        ]
        return _exclusive(layers)

    @cached_property
    def seen_from(self) -> dict[int, list[Spans]]:
        """As ``own``, but where a thread does nothing, what the other launching threads do.

        The autograd thread that launches the backward has nothing to do during the forward; what
        holds it up then is what the loop's thread does, and the other way round.
        """
        out = {}
        for thread, own in self.own.items():
            others = [layers for other, layers in self.own.items() if other != thread]
            merged = _exclusive([unite(layer) for layer in zip(*others, strict=True)])
            busy = unite(own)
            extra = [layer - busy for layer in merged] if merged else [Spans()] * len(own)
            out[thread] = [mine | theirs for mine, theirs in zip(own, extra, strict=True)]
        return out


def _exclusive(layers: list[Spans]) -> list[Spans]:
    """Each layer without the ones before it."""
    covered = Spans()
    out = []
    for layer in layers:
        out.append(layer - covered)
        covered = covered | layer
    return out
