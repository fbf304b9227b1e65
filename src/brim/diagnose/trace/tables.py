"""Tables of a trace for the long report: what stands in ``Diagnosis.details``.

Every table is a list of flat rows (``Diagnosis.details[name]`` holds them as plain dictionaries
with the fields below; a table that the trace cannot fill is absent, and a figure that is not known
is null, never 0).  Times are µs (floats, exact to a nanosecond); shares are of the measured window
of all ranks together, so that they may be compared with the shares of the account.

==================  ===================  =========================================================
``details`` key     row                  order
==================  ===================  =========================================================
``kernels``         :class:`KernelRow`   longest total time first, at most :data:`MAX_KERNELS`
``kernel_kinds``    :class:`KindRow`     longest total time first
``ranks``           :class:`RankRow`     by rank
``collectives``     :class:`CollRow`     longest exposed time first
``steps``           :class:`StepRow`     by rank, then by start
``timeline``        :class:`Segment`     by rank, lane, start; at most :data:`MAX_SEGMENTS`
``modules``         :class:`ModuleRow`   longest device time first, at most :data:`MAX_MODULES`
==================  ===================  =========================================================
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec

MAX_KERNELS = 40
MAX_MODULES = 40
MAX_SEGMENTS = 4000

Bound = Literal["compute", "memory", ""]


class KernelRow(msgspec.Struct, frozen=True, kw_only=True):
    """All launches of one kernel on all ranks."""

    name: str
    """As the trace has it, shortened; hostile text is possible, so escape it."""
    kind: str
    """``matmul``, ``attention``, ``conv``, ``norm``, ``elementwise``, ``reduce``, ``softmax``,
    ``index``, ``embedding``, ``loss``, ``optimizer``, ``comm``, ``copy``, ``other``."""
    dtype: str
    """``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8``, ``fp64``, or empty when not known."""
    library: str
    """``cublas``, ``cutlass``, ``cudnn``, ``flash-attention``, ``triton``, ``aten``, … or empty."""
    calls: int
    time_us: float
    share: float
    op: str = ""
    """The operation and input sizes on which it spends most time."""
    flops_per_s: float | None = None
    """Achieved: the FLOPs of the calls that it leads and whose work is known from ``Input Dims``,
    each by its own sizes, over the time of all kernels in these calls."""
    bytes_per_s: float | None = None
    """Achieved in the same calls, lower bound: every input and output touched once."""
    attainable: float | None = None
    """Reached share of the roofline for this work, at most 1 (a call that beats the table's peak
    or the memory's bandwidth is at the roof)."""
    bound: Bound = ""
    """Which roof most of that time is under."""


class KindRow(msgspec.Struct, frozen=True, kw_only=True):
    """All kernels of one kind."""

    kind: str
    calls: int
    time_us: float
    share: float
    mean_us: float


class RankRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rank over its window (the step window where there is one, else the kernel span)."""

    rank: int
    file: str
    device: str
    window_us: float
    steps: int
    compute: float
    exposed_comm: float
    exposed_copy: float
    idle: float
    """These four are shares of this rank's own window and sum to 1."""
    idle_by_cause: dict[str, float]
    """Shares of this rank's own window; they sum to ``idle``."""
    comm_wait_us: float | None = None
    """Time inside collectives before the last rank arrived; null with fewer than two ranks."""
    late_us: float | None = None
    """Time that the other ranks waited for this one."""
    late_calls: int | None = None
    """Collectives in which this rank arrived last."""
    late_cause: str = ""
    """What held this rank up most before it arrived last: a cause, or ``compute``."""


class CollRow(msgspec.Struct, frozen=True, kw_only=True):
    """All calls of one kind of collective, mean over ranks."""

    name: str
    calls_per_step: float
    bytes_per_step: float | None
    time_us: float
    exposed_us: float
    spread_us: float | None
    """Mean spread of arrival (first to last rank); null with fewer than two ranks."""
    bus_bytes_per_s: float | None
    """Bus bandwidth after the last arrival, by the formulas of nccl-tests."""


class StepRow(msgspec.Struct, frozen=True, kw_only=True):
    """One step of one rank, from its start to the start of the next (the last one to the end of
    the window)."""

    rank: int
    name: str
    start_us: float
    """After the start of the rank's window."""
    wall_us: float
    compute_us: float
    exposed_comm_us: float
    exposed_copy_us: float
    idle_us: float
    idle_by_cause: dict[str, float]
    """µs; they sum to ``idle_us``."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of the timeline of some steps.

    Three lanes per rank: ``device`` (``label`` is ``compute``, ``comm`` or ``copy`` while busy),
    ``idle`` (``label`` is the cause) and ``host`` (``label`` is what the launching thread does:
    ``input``, ``sync``, ``memory``, ``copy``, ``launch``, ``op``, ``compile``, ``gc``, ``save``,
    ``python``, or ``untraced``).  Neighbours with one label and less than a pixel's gap are merged.
    """

    rank: int
    lane: Literal["device", "idle", "host"]
    start_us: float
    """After the start of the rank's window."""
    end_us: float
    label: str
    name: str = ""
    """The longest event inside; hostile text is possible, so escape it."""


class ModuleRow(msgspec.Struct, frozen=True, kw_only=True):
    """Device time under one module (python stacks, module hierarchy) or one user annotation."""

    module: str
    device_us: float
    share: float
    kernels: int
    """Launches."""
    kinds: dict[str, float]
    """Kind → µs."""


def rows(table: Sequence[msgspec.Struct]) -> list[dict[str, Any]]:
    """The table as plain dictionaries, as ``Diagnosis.details`` holds it."""
    return [msgspec.to_builtins(row) for row in table]
