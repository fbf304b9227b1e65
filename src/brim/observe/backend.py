"""What every maker's devices look like to the sampler: one interface, readings that never raise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from brim.record.devices import Device, DeviceProcess, DeviceSample, Meaning

T = TypeVar("T")

Owner = Callable[[int, int | None], DeviceProcess]
"""(pid, bytes on the device) → the process, with whose it is."""


class Unavailable(Exception):
    """There are no devices of this kind here; the text says why."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a sample is taken, and what it may cost."""

    t: float
    mono: float
    interval_s: float
    tick: int
    """Number of the sample, from 0; slow readings take turns by it."""
    owner: Owner


class Backend(Protocol):
    """The devices of one maker's driver."""

    name: str

    @property
    def driver(self) -> str:
        """The driver's version."""
        ...

    @property
    def meanings(self) -> dict[str, Meaning]:
        """Field of ``DeviceSample`` → unit, source, period."""
        ...

    def open(self) -> None:
        """Raises :class:`Unavailable`."""

    def devices(self) -> list[Device]: ...

    def sample(self, moment: Moment) -> list[DeviceSample]:
        """One sample per device, in the order of :meth:`devices`; never raises."""

    def close(self) -> None: ...


@dataclass(slots=True)
class Guard:
    """Takes readings that may not exist, and remembers why they do not.

    A reading that the device does not support is not tried again; any other failure holds for
    this sample only.
    """

    error: type[Exception]
    """What the binding raises."""
    unsupported: dict[int, str]
    """Its codes that will not change → reason."""
    never: dict[str, str] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)

    def get(self, name: str, read: Callable[[], T]) -> T | None:
        if name in self.never:
            return None
        try:
            return read()
        except self.error as error:
            code: Any = getattr(error, "value", None)
            if code in self.unsupported:
                self.never[name] = self.unsupported[code]
            else:
                self.now[name] = str(error)
        except AttributeError:
            self.never[name] = "the installed binding does not know this call"
        return None

    def why(self, name: str) -> str:
        return self.never.get(name) or self.now.get(name, "")


def significant(value: Any) -> Any:
    """Five significant digits say more than any of these sensors knows; others pass unchanged."""
    if not isinstance(value, float):
        return value
    return float(round(value)) if abs(value) >= 1e5 else float(f"{value:.5g}")
