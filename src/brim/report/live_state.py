"""What the live view knows: the last samples, some history, and what deserves an alert."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec

from brim.observe.nvml_fields import HARMLESS
from brim.record.devices import About, Device, DeviceSample, HostSample
from brim.report.live_job import JobView

HISTORY = 240
_MEANS = (
    "gpu_util", "sm_active", "sm_occupancy", "tensor_active", "dram_active", "fp32_active",
    "fp16_active", "nvdec_util", "nvjpg_util", "pcie_tx_bytes_s", "pcie_rx_bytes_s",
    "nvlink_tx_bytes_s", "nvlink_rx_bytes_s",
)  # fmt: skip
"""Fields that are means since the last reading: null in a sample that took none."""
ALERT_S = 10.0
"""Throttling is judged over the last seconds: a cap for one sample is no news."""
THROTTLED_FROM = 0.05
_FULL = 0.97
_PRESSURE = 0.10
_QUOTA = 0.05


@dataclass(frozen=True, slots=True)
class Alert:
    """A sentence, and whether it costs the job something now."""

    text: str
    severe: bool


class _Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    about: About
    devices: list[DeviceSample]
    host: HostSample | None
    job: JobView | None
    alerts: list[str]


@dataclass(slots=True)
class _History:
    """One device; sums are kept as samples come and go, since the view asks often."""

    last: DeviceSample | None = None
    tensor: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    util: deque[float] = field(default_factory=lambda: deque(maxlen=HISTORY))
    energy_j: float | None = None
    throttled_s: dict[str, float] = field(default_factory=dict)
    """Reason → seconds since the view began, by the driver's counters."""
    held: dict[str, float] = field(default_factory=dict)
    """Reason → share of the window."""
    _counted: float | None = None
    """When the counters were read last; None: the driver has none."""
    _window: deque[tuple[float, float, dict[str, float]]] = field(default_factory=deque)

    def add(self, sample: DeviceSample) -> None:
        self.last = _with_means(sample, self.last)
        if sample.tensor_active is not None:
            self.tensor.append(sample.tensor_active)
        if sample.gpu_util is not None:
            self.util.append(sample.gpu_util)
        for reason, seconds in (sample.throttled_s or {}).items():
            self.throttled_s[reason] = self.throttled_s.get(reason, 0.0) + seconds
        if sample.energy_j is not None:
            self.energy_j = sample.energy_j
        if (covered := self._covered(sample)) is not None:
            self._window.append((sample.t, *covered))
            while len(self._window) > 1 and sample.t - self._window[0][0] > ALERT_S:
                self._window.popleft()
            self.held = self._shares()

    def _covered(self, sample: DeviceSample) -> tuple[float, dict[str, float]] | None:
        """(seconds, seconds held by reason) that a sample tells about; None: nothing new.

        From the driver's counters; where it has none, from the momentary bits.
        """
        if sample.throttled_s is not None:
            last = sample.interval_s if self._counted is None else sample.t - self._counted
            self._counted = sample.t
            since = sample.covers_s.get("throttled_s", last)
            return since, {reason: s for reason, s in sample.throttled_s.items() if s > 0}
        if self._counted is not None:
            return None
        held = [r for r in sample.reasons or () if r not in HARMLESS]
        return sample.interval_s, dict.fromkeys(held, sample.interval_s)

    def _shares(self) -> dict[str, float]:
        span = sum(interval_s for _, interval_s, _ in self._window)
        total: dict[str, float] = {}
        for _, _, held in self._window:
            for reason, seconds in held.items():
                total[reason] = total.get(reason, 0.0) + seconds
        return {r: min(1.0, s / span) for r, s in total.items()} if span > 0 else {}


def _with_means(sample: DeviceSample, before: DeviceSample | None) -> DeviceSample:
    """The sample, with the means of the last reading where it took none.

    With many devices each is asked for its dear figures only every few seconds.
    """
    if before is None:
        return sample
    kept = {
        name: value
        for name in _MEANS
        if getattr(sample, name) is None
        and name not in sample.absent
        and (value := getattr(before, name)) is not None
    }
    return msgspec.structs.replace(sample, **kept) if kept else sample


class LiveState:
    """Fed with samples, asked by the view and the exporter; holds a bounded amount."""

    def __init__(self, about: About) -> None:
        self.about = about
        self.host: HostSample | None = None
        self.job: JobView | None = None
        self.samples = 0
        """Samples taken so far."""
        self._lock = threading.Lock()  # a resize draws while the sampler adds
        self._devices: dict[int, _History] = {d.index: _History() for d in about.devices}

    def add(self, devices: Iterable[DeviceSample], host: HostSample | None) -> None:
        with self._lock:
            self.samples += 1
            for sample in devices:
                self._devices.setdefault(sample.device, _History()).add(sample)
        if host is not None:
            self.host = host

    @property
    def devices(self) -> list[Device]:
        return self.about.devices

    def last(self, device: int) -> DeviceSample | None:
        return self._devices[device].last if device in self._devices else None

    def activity(self, device: int) -> tuple[str, list[float]]:
        """What the sparkline shows, oldest first: tensor activity, or utilisation without it."""
        with self._lock:
            history = self._devices.get(device, _History())
            if history.tensor:
                return "tensor", list(history.tensor)
            return "util", list(history.util)

    def energy_j(self, device: int) -> float | None:
        """The last reading of the energy counter."""
        return self._devices[device].energy_j if device in self._devices else None

    def throttled_totals(self, device: int) -> dict[str, float]:
        """Reason → seconds since the view began; empty where the driver does not count."""
        with self._lock:
            return dict(self._devices[device].throttled_s) if device in self._devices else {}

    def as_json(self) -> bytes:
        """The last samples with what they mean, indented, newline at the end."""
        snapshot = _Snapshot(
            about=self.about,
            devices=[s for d in self.devices if (s := self.last(d.index)) is not None],
            host=self.host,
            job=self.job,
            alerts=[a.text for a in self.alerts()],
        )
        return msgspec.json.format(msgspec.json.encode(snapshot), indent=2) + b"\n"

    def alerts(self) -> list[Alert]:
        """Severe ones first."""
        found = [alert for d in self.devices for alert in self._of_device(d)]
        found += self._throttled()
        found += _of_host(self.host)
        return sorted(found, key=lambda a: not a.severe)

    def _of_device(self, device: Device) -> list[Alert]:
        sample = self.last(device.index)
        if sample is None:
            return []
        label = f"device {device.index}"
        why = device.absent.get("gpu_util") or sample.absent.get("gpu_util", "")
        if "lost" in why:
            return [Alert(f"{label} is lost: {why}", severe=True)]
        found = []
        others = [p for p in sample.processes or () if p.whose == "other"]
        if others:
            names = ", ".join(f"{p.pid} {p.name}".strip() for p in others[:3])
            found.append(Alert(f"{label} is shared with {names}", severe=True))
        used, total = sample.memory_used_bytes, device.memory_bytes
        if used is not None and total and used / total > _FULL:
            text = f"{label} memory is {used / total:.0%} full"
            found.append(Alert(text, severe=False))
        return found

    def _throttled(self) -> list[Alert]:
        """One alert a reason, whatever number of devices it holds down."""
        held: dict[str, list[tuple[float, Device]]] = {}
        for device in self.devices:
            for reason, share in self.throttling(device.index).items():
                if share >= THROTTLED_FROM:
                    held.setdefault(reason, []).append((share, device))
        return [
            # a cap that was set is a choice, and memory-bound work hardly feels it
            Alert(self._held_words(reason, found), severe=reason != "power cap")
            for reason, found in held.items()
        ]

    def _held_words(self, reason: str, found: list[tuple[float, Device]]) -> str:
        share, device = max(found, key=lambda f: f[0])
        if len(found) == 1:
            clock = _clock(device, self.last(device.index))
            return f"device {device.index} throttled by {reason} {share:.0%} of the time{clock}"
        numbers = ", ".join(str(d.index) for _, d in found)
        return f"devices {numbers} throttled by {reason} up to {share:.0%} of the time"

    def throttling(self, device: int) -> dict[str, float]:
        """Reason → share of the last seconds in which it held the clocks down."""
        return self._devices[device].held if device in self._devices else {}


def _clock(device: Device, sample: DeviceSample | None) -> str:
    if sample is None or sample.sm_clock_mhz is None or device.max_sm_clock_mhz is None:
        return ""
    return f" ({sample.sm_clock_mhz:.0f} of {device.max_sm_clock_mhz:.0f} MHz)"


def _of_host(host: HostSample | None) -> list[Alert]:
    if host is None:
        return []
    found = []
    if host.throttled is not None and host.throttled >= _QUOTA:
        text = f"the CPU quota runs out in {host.throttled:.0%} of its periods"
        found.append(Alert(text, severe=True))
    psi = host.psi or {}
    for name, what in (("memory.full", "memory"), ("io.full", "storage")):
        if psi.get(name, 0.0) >= _PRESSURE:
            text = f"all tasks wait for {what} {psi[name]:.0%} of the time"
            found.append(Alert(text, severe=name == "memory.full"))
    if host.swap_in_bytes_s is not None and host.swap_in_bytes_s > 1 << 20:
        found.append(Alert("the host swaps", severe=True))
    return found
