"""Profiling fields from a DCGM host engine: tensor and SM activity before Hopper.

Asked for with ``--dcgm`` only: on Volta to Ada the hardware counters serve one client at a time,
so DCGM's profiling fields keep Nsight (and are kept by it) from working.  The bindings come with
the datacenter-gpu-manager package and not from an index; a running ``nv-hostengine`` does the
reading with the rights it has.  Fields are named by number, since releases rename them.
"""

from __future__ import annotations

import contextlib
import importlib
import socket
import sys
from pathlib import Path
from typing import Any

import msgspec

from brim.errors import BrimError
from brim.observe.backend import Backend, Moment
from brim.observe.nvml import Nvml
from brim.record.devices import Device, DeviceSample, Meaning

_ENGINE = ("127.0.0.1", 5555)
_BINDINGS = (
    Path("/usr/share/datacenter-gpu-manager-4/bindings/python3"),
    Path("/usr/local/dcgm/bindings/python3"),
)
_UUID = 54
_PERIOD_US = 500_000

# DCGM field → field of DeviceSample; shares are of 1 already, traffic is in bytes per second
PROFILING = {
    1002: "sm_active",
    1003: "sm_occupancy",
    1004: "tensor_active",
    1005: "dram_active",
    1007: "fp32_active",
    1008: "fp16_active",
    1009: "pcie_tx_bytes_s",
    1010: "pcie_rx_bytes_s",
    1011: "nvlink_tx_bytes_s",
    1012: "nvlink_rx_bytes_s",
}


class WithDcgm:
    """NVML's samples, with the fields that only DCGM has filled in."""

    def __init__(self, inner: Backend, reader: Any) -> None:
        """``reader``: a ``DcgmReader`` that watches ``PROFILING`` and the UUID field."""
        self._inner = inner
        self._reader = reader
        self._found: set[str] = set()
        self.name = f"{inner.name} + dcgm"

    @property
    def driver(self) -> str:
        return self._inner.driver

    @property
    def meanings(self) -> dict[str, Meaning]:
        number = {name: field for field, name in PROFILING.items()}
        return {
            name: msgspec.structs.replace(
                meaning, source=f"DCGM field {number[name]}", period_s=_PERIOD_US / 1e6
            )
            if name in self._found
            else meaning
            for name, meaning in self._inner.meanings.items()
        }

    def open(self) -> None:
        self._inner.open()

    def devices(self) -> list[Device]:
        """A field that DCGM gives is not absent any more."""
        return [
            msgspec.structs.replace(
                d, absent={name: why for name, why in d.absent.items() if name not in self._found}
            )
            for d in self._inner.devices()
        ]

    def sample(self, moment: Moment) -> list[DeviceSample]:
        by_uuid = self._read()
        samples = self._inner.sample(moment)
        uuids = [d.uuid for d in self._inner.devices()]
        return [self._fill(s, by_uuid.get(u, {})) for s, u in zip(samples, uuids, strict=True)]

    def close(self) -> None:
        with contextlib.suppress(Exception):  # the engine may have gone
            self._reader.Shutdown()
        self._inner.close()

    def _read(self) -> dict[str, dict[int, Any]]:
        """UUID → field → value; empty when the engine does not answer."""
        try:
            found = self._reader.GetLatestGpuValuesAsFieldIdDict()
        except Exception:  # its bindings raise classes made at run time
            return {}
        return {str(values[_UUID]): values for values in found.values() if _UUID in values}

    def _fill(self, sample: DeviceSample, values: dict[int, Any]) -> DeviceSample:
        changes = {}
        for field, name in PROFILING.items():
            value = values.get(field)
            # GPM's own figure stays: it covers exactly the sample's interval
            if isinstance(value, int | float) and (
                getattr(sample, name) is None or name in self._found
            ):
                changes[name] = float(value)
        if not changes:
            return sample
        self._found |= changes.keys()
        absent = {name: why for name, why in sample.absent.items() if name not in changes}
        return msgspec.structs.replace(sample, absent=absent, **changes)


def with_dcgm(inner: Backend | None = None) -> Backend:
    """NVML together with the host engine of this machine.

    Raises :class:`BrimError` when no engine listens or its bindings are not installed.
    """
    if not _listens():
        raise BrimError(
            f"no DCGM host engine listens on {_ENGINE[0]}:{_ENGINE[1]}",
            hint="start it (systemctl start nvidia-dcgm), or leave --dcgm out",
        )
    fields = [_UUID, *PROFILING]
    reader = _bindings().DcgmReader(
        hostname=_ENGINE[0],
        fieldIds=fields,
        updateFrequency=_PERIOD_US,
        maxKeepAge=60.0,
        fieldGroupName="brim",
    )
    return WithDcgm(Nvml() if inner is None else inner, reader)


def _listens() -> bool:
    try:
        with socket.create_connection(_ENGINE, timeout=1.0):
            return True
    except OSError:
        return False


def _bindings() -> Any:
    sys.path.extend(str(p) for p in _BINDINGS if p.is_dir() and str(p) not in sys.path)
    try:
        return importlib.import_module("DcgmReader")
    except ImportError:
        raise BrimError(
            "DCGM's Python bindings are not installed",
            hint="they come with the package datacenter-gpu-manager",
        ) from None
