"""What a cure is worth, as a range.

The upper end says that the lost time goes away.  It never wholly does: what hid behind it comes
out.  In a public pair of traces a loader that took 33.4 % of the time was cured; 1.50× was
predicted by its share and 1.26× measured, so 61 % of the time came back.
"""

from __future__ import annotations

CAREFUL = 0.5
"""Share of the lost time that surely comes back, where nothing better is known."""

SURE = {
    "host.gc": 0.9,
    "host.debug-mode": 0.9,
    "host.recompile": 0.9,
    "host.periodic": 0.8,
    "memory.cache-flush": 0.8,
    "compute.padding": 0.7,
    "compute.recompute": 0.8,
}
"""Causes that stop the training thread itself: what they take hides little else."""


def gain(cause: str, share: float, stays: float | None = None) -> tuple[float, float]:
    """(lower, upper) factor of speed when ``cause`` takes ``share`` of the time.

    ``stays``: the part of that time which remains when it is cured as far as this machine allows.
    """
    upper_part = share * (1.0 - (stays or 0.0))
    lower_part = min(upper_part, share * SURE.get(cause, CAREFUL))
    return 1.0 / max(1e-3, 1.0 - lower_part), 1.0 / max(1e-3, 1.0 - upper_part)
