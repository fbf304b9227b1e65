"""What a live run knows beyond its trace."""

from __future__ import annotations

from dataclasses import dataclass, field

from brim.record.findings import Where


@dataclass(frozen=True, kw_only=True, slots=True)
class TraceContext:
    """Measured without the profiler, on the same job; everything is optional.

    A profiled step is slower than an ordinary one, because recording an event costs the host
    about a microsecond; ``step_s`` lets the account take that out again.
    """

    step_s: float | None = None
    """Wall time of an ordinary step."""
    memory_free: float | None = None
    """Share of the device's memory that was free at the peak."""
    padding: float | None = None
    """Share of padding among the tokens that reached the model."""
    model_flops_per_step: float | None = None
    """Useful FLOPs of one step on one device (no padding, no recompute)."""
    peak_flops: float | None = None
    """The device's dense peak in the format of the matrix products, FLOP/s."""
    attainable_flops: float | None = None
    """FLOP/s that a matrix product in that format reached on this device when it was measured."""
    input_cause: str | None = None
    """Which ``input.*`` cause the loader's own measurement names; a trace shows only that the
    training process waits, not for what."""
    places: dict[str, Where] = field(default_factory=dict)
    """Cause → line of the program, from stack samples; used where the trace has no stacks."""
    frameworks: tuple[str, ...] = ()
