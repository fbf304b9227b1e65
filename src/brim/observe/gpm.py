"""GPM: what the SMs, tensor cores, memory and links of a Hopper or newer device really do.

Two samples of the driver's counters, and the metrics between them; no root, no DCGM.  The
structure of the binding and of the driver may know different numbers of metrics under one version
number, so only the return code of each metric is trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

MIB = float(1 << 20)

# Numbers of nvmlGpmMetricId_t (nvml.h) → (field of DeviceSample, factor to its unit).
# TX is what the device sends: PCIe TX is device to host, as DCGM's field 1009.
METRICS: dict[int, tuple[str, float]] = {
    1: ("gpu_util", 0.01),
    2: ("sm_active", 0.01),
    3: ("sm_occupancy", 0.01),
    5: ("tensor_active", 0.01),
    10: ("dram_active", 0.01),
    12: ("fp32_active", 0.01),
    13: ("fp16_active", 0.01),
    20: ("pcie_tx_bytes_s", MIB),
    21: ("pcie_rx_bytes_s", MIB),
    60: ("nvlink_rx_bytes_s", MIB),
    61: ("nvlink_tx_bytes_s", MIB),
    # engines 0 to 7 of each kind; a field is the mean over the engines that answer
    **{30 + engine: ("nvdec_util", 0.01) for engine in range(8)},
    **{40 + engine: ("nvjpg_util", 0.01) for engine in range(8)},
}
FIELDS = tuple(dict.fromkeys(field for field, _ in METRICS.values()))

# Bytes on PCIe around 256 of payload (PCI Express Base 5.0, 2.1.2 and 3.4.1): two of sequence
# number, four of checksum, and a header of three words for data that the device asked for (a
# completion), of four for data that it writes to an address of the host.
_PAYLOAD = 256
_AROUND = {"pcie_rx_bytes_s": 2 + 4 + 12, "pcie_tx_bytes_s": 2 + 4 + 16}

_SUCCESS = 0

# The binding's structures override attribute access in Python, ten times the cost of ctypes' own.
_plain = object.__getattribute__


class Gpm:
    """The metrics of one device or MIG instance between two calls of :meth:`read`."""

    def __init__(self, lib: Any, handle: Any, *, gpu_instance: int | None = None) -> None:
        """Raises ``lib.NVMLError`` when the device has no GPM; the two buffers are freed then."""
        self._lib = lib
        self._handle = handle
        self._instance = gpu_instance
        self._buffers = [lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()]
        self._query = lib.c_nvmlGpmMetricsGet_t()
        self._metrics: list[int] = []
        self._ask(list(METRICS))
        try:
            self._take(0)
        except lib.NVMLError:
            self.close()
            raise
        self._older = 0

    def read(self) -> dict[str, float]:
        """Field → value since the last call (since creation, the first time).

        A metric that this device does not have is left out, and not asked for again.
        """
        newer = 1 - self._older
        self._take(newer)
        query = self._query
        query.sample1, query.sample2 = self._buffers[self._older], self._buffers[newer]
        self._lib.nvmlGpmMetricsGet(query)
        self._older = newer
        good = [
            (metric, _plain(slot, "value"))
            for metric, slot in zip(self._metrics, query.metrics, strict=False)
            if _plain(slot, "nvmlReturn") == _SUCCESS
        ]
        if len(good) < len(self._metrics):
            self._ask([metric for metric, _ in good])
        return _by_field(good)

    def _ask(self, metrics: list[int]) -> None:
        self._metrics = metrics
        self._query.version = self._lib.NVML_GPM_METRICS_GET_VERSION
        self._query.numMetrics = len(metrics)
        for slot, metric in zip(self._query.metrics, metrics, strict=False):
            slot.metricId = metric

    def close(self) -> None:
        for buffer in self._buffers:
            self._lib.nvmlGpmSampleFree(buffer)
        self._buffers = []

    def _take(self, slot: int) -> None:
        if self._instance is None:
            self._lib.nvmlGpmSampleGet(self._handle, self._buffers[slot])
        else:
            self._lib.nvmlGpmMigSampleGet(self._handle, self._instance, self._buffers[slot])


def payload(field: str, counted: float) -> float:
    """Estimate of the data in ``counted`` bytes (or bytes/s) of ``pcie_rx_bytes_s`` or
    ``pcie_tx_bytes_s``, which count the packets' headers too.

    For large copies in packets of 256 bytes, the usual maximum; small ones carry more header, and
    the other direction's requests and acknowledgements are not data at all.
    """
    return counted * _PAYLOAD / (_PAYLOAD + _AROUND[field])


def _by_field(metrics: Iterable[tuple[int, float]]) -> dict[str, float]:
    values: dict[str, list[float]] = {}
    for metric, value in metrics:
        field, factor = METRICS[metric]
        if value == value:  # the driver answers NaN where a counter did not run
            values.setdefault(field, []).append(value * factor)
    return {field: sum(v) / len(v) for field, v in values.items()}
