"""What a rule about busy time returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from brim.diagnose.trace.table import Float64, Kernels
from brim.diagnose.trace.timeline import Bool, Int64

REACHED: Final = 0.5
"""Share of a roof that an ordinary kernel surely reaches."""


@dataclass(frozen=True, slots=True)
class Loss:
    """Recoverable kernel time of one cause."""

    cause: str
    ns: float
    """Recoverable."""
    involved_ns: float
    """All time of the kernels concerned."""
    kernels: int
    evidence: list[str] = field(default_factory=list)
    rows: Int64 = field(default_factory=lambda: np.empty(0, np.int64))
    """Device events concerned."""


Claim = tuple[Loss | None, Bool]
"""A rule's loss, and which kernels of the table it took."""


def claim(table: Kernels, cause: str, taken: Bool, back: Float64, evidence: list[str]) -> Claim:
    """``back``: ns of each kernel of the table that a cure gives back, read where ``taken``."""
    if not taken.any():
        return None, taken
    return (
        Loss(
            cause=cause,
            ns=float(back[taken].sum()),
            involved_ns=float(table.ns[taken].sum()),
            kernels=int(taken.sum()),
            evidence=evidence,
            rows=table.rows[taken],
        ),
        taken,
    )
