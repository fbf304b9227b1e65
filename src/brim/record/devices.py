"""``devices.host.jsonl``: what the devices and their host did while a job ran.

One JSON object a line, told apart by ``type``:

``about``   first, and again whenever the sampler starts anew: the devices, and for each field its
            unit, source and period, and for each device why a field is absent
``device``  one sample of one device
``host``    one sample of the host and of the job's processes
``note``    something a reader should know (no driver, a slower period, a full disk)

Absent is ``null`` and has a reason (:func:`why_absent`); it is never 0.  Shares are of 1.  Rates
cover the ``interval_s`` seconds that end at ``t``.  The reader skips a last line that was cut by a
crash, and lines of a later version's types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from brim.errors import InputError

VERSION = 1
FILE = "devices.host.jsonl"

Whose = Literal["job", "other", "unknown"]
"""Of the measured job's tree; of somebody else; not to be told (another PID namespace)."""


class Meaning(msgspec.Struct, frozen=True, kw_only=True):
    """What a field is and where it comes from."""

    unit: str
    what: str
    source: str = ""
    """The call or file; empty when this machine has none."""
    period_s: float | None = None
    """Time between two readings when the line was written.  In between a state stands; averages
    and growths since the last reading are null."""


class Device(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A device, or with ``parent`` a partition of one."""

    index: int
    """Row in this file, from 0."""
    name: str
    uuid: str = ""
    pci_bus_id: str = ""
    pci_device_id: str = ""
    capability: tuple[int, int] | None = None
    """Compute capability; None where there is no CUDA or the driver does not say."""
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    max_sm_clock_mhz: float | None = None
    sm_count: int | None = None
    """SMs of a MIG partition; None for a whole device (NVML does not count them)."""
    parent: str = ""
    """The whole device's uuid when this is a MIG partition."""
    absent: dict[str, str] = {}
    """Field → why it is never there on this device."""


class About(msgspec.Struct, frozen=True, kw_only=True, tag="about", tag_field="type"):
    version: int = VERSION
    t: float
    """Unix time, seconds."""
    host: str
    backend: str
    """``nvml``, ``amdsmi``, or ``none`` with the reason in ``why_none``."""
    why_none: str = ""
    driver: str = ""
    period_s: float
    devices: list[Device] = []
    fields: dict[str, Meaning] = {}
    """``device.<field>`` and ``host.<field>``."""
    usable_cores: float | None = None
    machine_cores: int | None = None
    why_cores: list[str] = []


class DeviceProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process with memory on the device."""

    pid: int
    whose: Whose
    name: str = ""
    memory_bytes: int | None = None


class DeviceSample(
    msgspec.Struct, frozen=True, kw_only=True, tag="device", tag_field="type", omit_defaults=True
):
    t: float
    """Unix time at the end of the interval, seconds."""
    mono: float
    """``time.monotonic()`` at the same moment: the clock of the steps' records."""
    interval_s: float
    device: int
    """Index into ``About.devices``."""
    gpu_util: float | None = None
    mem_util: float | None = None
    sm_active: float | None = None
    sm_occupancy: float | None = None
    tensor_active: float | None = None
    dram_active: float | None = None
    fp32_active: float | None = None
    fp16_active: float | None = None
    nvdec_util: float | None = None
    nvjpg_util: float | None = None
    pcie_tx_bytes_s: float | None = None
    pcie_rx_bytes_s: float | None = None
    nvlink_tx_bytes_s: float | None = None
    nvlink_rx_bytes_s: float | None = None
    power_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    temperature_c: float | None = None
    memory_used_bytes: int | None = None
    reasons: list[str] | None = None
    """What holds the clocks down at this moment; ``[]``: nothing, None: not known."""
    throttled_s: dict[str, float] | None = None
    """Reason → seconds since the last reading in which it held the clocks down.

    From the driver's counters, which are not read at every sample: sums over samples are exact.
    """
    processes: list[DeviceProcess] | None = None
    covers_s: dict[str, float] = {}
    """Field → the seconds that end at ``t`` and that its value covers, where these are not
    ``interval_s``."""
    absent: dict[str, str] = {}
    """Field → why it is missing in this sample though the device has it."""


class HostProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A process of the job."""

    pid: int
    ppid: int
    name: str
    cpu: float | None = None
    """Cores used, user and system."""
    system: float | None = None
    """Cores used in the kernel."""
    state: str = ""
    """R, S, D, … as in proc(5), at the moment of the sample."""
    threads: int | None = None
    rss_bytes: int | None = None


class HostSample(
    msgspec.Struct, frozen=True, kw_only=True, tag="host", tag_field="type", omit_defaults=True
):
    t: float
    mono: float
    interval_s: float
    cpu: float | None = None
    """Cores busy on the whole machine."""
    iowait: float | None = None
    job_cpu: float | None = None
    job_processes: int | None = None
    processes: list[HostProcess] = []
    """Those of the job that use most CPU."""
    throttled: float | None = None
    """Share of the cgroup's enforcement periods in which its CPU quota ran out."""
    psi: dict[str, float] | None = None
    """``cpu.some io.some io.full memory.some memory.full`` → share of the interval stalled."""
    disk_read_bytes_s: float | None = None
    disk_write_bytes_s: float | None = None
    net_rx_bytes_s: float | None = None
    net_tx_bytes_s: float | None = None
    rdma_rx_bytes_s: float | None = None
    rdma_tx_bytes_s: float | None = None
    memory_available_bytes: int | None = None
    page_cache_bytes: int | None = None
    swap_in_bytes_s: float | None = None
    swap_out_bytes_s: float | None = None
    absent: dict[str, str] = {}


class Note(msgspec.Struct, frozen=True, kw_only=True, tag="note", tag_field="type"):
    t: float
    text: str


Line = About | DeviceSample | HostSample | Note

_DECODER = msgspec.json.Decoder(Line)
_ENCODER = msgspec.json.Encoder()


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """The whole file."""

    about: About
    """The last one in the file."""
    samples: list[DeviceSample]
    host: list[HostSample]
    notes: list[str]

    def of(self, device: int) -> list[DeviceSample]:
        """Samples of one device, oldest first."""
        return [s for s in self.samples if s.device == device]


def encode(line: Line) -> bytes:
    """One line, newline included."""
    return _ENCODER.encode(line) + b"\n"


def lines(data: bytes) -> Iterator[Line]:
    """The readable lines of ``data``; a cut or foreign line is skipped."""
    for raw in data.split(b"\n"):
        if not raw.strip():
            continue
        try:
            yield _DECODER.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            continue


def read(path: Path) -> Recording:
    """Read a run directory's file, or the folder that holds it.

    Raises :class:`InputError` when there is no such file or it holds no ``about`` line.
    """
    path = path / FILE if path.is_dir() else path
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None
    recording = collect(lines(data))
    if recording is None:
        raise InputError(f"{path}: not a recording of devices (no line that says what it holds)")
    return recording


def collect(found: Iterable[Line]) -> Recording | None:
    """Sort lines into a :class:`Recording`; None without an ``about``."""
    about: About | None = None
    samples: list[DeviceSample] = []
    host: list[HostSample] = []
    notes: list[str] = []
    for line in found:
        if isinstance(line, About):
            about = line
        elif isinstance(line, DeviceSample):
            samples.append(line)
        elif isinstance(line, HostSample):
            host.append(line)
        else:
            notes.append(line.text)
    if about is None:
        return None
    return Recording(about=about, samples=samples, host=host, notes=notes)


def why_absent(about: About, sample: DeviceSample, field: str) -> str:
    """The reason for a null: the sample's own, else the device's."""
    if field in sample.absent:
        return sample.absent[field]
    device = next((d for d in about.devices if d.index == sample.device), None)
    if device is not None and field in device.absent:
        return device.absent[field]
    meaning = about.fields.get(f"device.{field}")
    if meaning is not None and (meaning.period_s or 0.0) > about.period_s:
        return f"read every {meaning.period_s:.3g} s"
    return ""
