"""The live state as Prometheus metrics.

Names end in base units; what is absent is not exported, since 0 would be a lie; labels are the
device's number, a reason, an owner, a phase, so the number of series is a few hundred on the
largest node.  Nothing secret is exported: no command line, no user, no path.

The server answers GET for ``/metrics`` and nothing else, on the loopback address unless told
otherwise, and checks the Host header, so that a web page in a browser on this machine cannot read
it through a name that resolves to 127.0.0.1.
"""

from __future__ import annotations

import contextlib
import ipaddress
import platform
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from brim import __version__
from brim.errors import BrimError, UsageError
from brim.report.live_state import LiveState

PORT = 9464
"""The default of OpenTelemetry's Prometheus exporters."""
_TIMEOUT_S = 10.0

# field of DeviceSample → (metric, factor to its unit, help)
_DEVICE_GAUGES: dict[str, tuple[str, float, str]] = {
    "gpu_util": ("utilization_ratio", 1, "Time in which at least one kernel ran; not a load"),
    "mem_util": ("memory_utilization_ratio", 1, "Time in which memory was read or written"),
    "sm_active": ("sm_active_ratio", 1, "SMs with a warp"),
    "sm_occupancy": ("sm_occupancy_ratio", 1, "Warp slots in use"),
    "tensor_active": ("tensor_active_ratio", 1, "SM time in which tensor cores worked"),
    "dram_active": ("dram_active_ratio", 1, "Memory bandwidth in use"),
    "fp32_active": ("fp32_active_ratio", 1, "SM time in fp32 units"),
    "fp16_active": ("fp16_active_ratio", 1, "SM time in fp16 units without tensor cores"),
    "nvdec_util": ("nvdec_utilization_ratio", 1, "Video decoders, mean"),
    "nvjpg_util": ("nvjpg_utilization_ratio", 1, "JPEG decoders, mean"),
    "pcie_tx_bytes_s": ("pcie_transmit_bytes_per_second", 1, "Device to host"),
    "pcie_rx_bytes_s": ("pcie_receive_bytes_per_second", 1, "Host to device"),
    "nvlink_tx_bytes_s": ("nvlink_transmit_bytes_per_second", 1, "Sent on all NVLinks"),
    "nvlink_rx_bytes_s": ("nvlink_receive_bytes_per_second", 1, "Received on all NVLinks"),
    "power_w": ("power_watts", 1, "Power drawn at the last sample"),
    "sm_clock_mhz": ("sm_clock_hertz", 1e6, "SM clock at the last sample"),
    "memory_clock_mhz": ("memory_clock_hertz", 1e6, "Memory clock"),
    "temperature_c": ("temperature_celsius", 1, "Temperature of the die"),
    "memory_used_bytes": ("memory_used_bytes", 1, "Memory allocated by all processes"),
}
_HOST_GAUGES: dict[str, tuple[str, str]] = {
    "cpu": ("cpu_busy_cores", "Busy cores of the machine"),
    "iowait": ("cpu_iowait_cores", "Cores idle while a task waits for storage"),
    "job_cpu": ("job_cpu_cores", "Cores used by the job"),
    "job_processes": ("job_processes", "Processes of the job"),
    "throttled": ("cpu_quota_exhausted_ratio", "CFS periods in which the CPU quota ran out"),
    "disk_read_bytes_s": ("disk_read_bytes_per_second", "Local disks"),
    "disk_write_bytes_s": ("disk_write_bytes_per_second", "Local disks"),
    "net_rx_bytes_s": ("network_receive_bytes_per_second", "All interfaces but lo"),
    "net_tx_bytes_s": ("network_transmit_bytes_per_second", "All interfaces but lo"),
    "memory_available_bytes": ("memory_available_bytes", "Free without swapping"),
    "page_cache_bytes": ("page_cache_bytes", "File pages in memory"),
    "swap_in_bytes_s": ("swap_in_bytes_per_second", "Read back from swap"),
    "swap_out_bytes_s": ("swap_out_bytes_per_second", "Written to swap"),
}
_JOB_GAUGES: dict[str, tuple[str, str]] = {
    "ranks": ("ranks", "Training processes seen"),
    "steps_s": ("steps_per_second", "Optimizer steps of one rank"),
    "tokens_s": ("tokens_per_second", "Tokens of all ranks without padding"),
    "images_s": ("images_per_second", "Images of all ranks"),
    "samples_s": ("samples_per_second", "Training samples of all ranks"),
    "loss": ("loss", "Last recorded loss"),
}


class LiveCollector(Collector):
    """Turns the state into metric families at each scrape."""

    def __init__(self, state: LiveState) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        state = self._state
        yield _info("brim_watch", "The exporter", {"version": __version__})
        taken = CounterMetricFamily("brim_watch_samples", "Samples taken")
        taken.add_metric([], state.samples)
        yield taken
        families = [*_devices(state), *_totals(state), *_owners(state), *_host(state), *_job(state)]
        yield from (family for family in families if family.samples)


def _devices(state: LiveState) -> Iterable[Metric]:
    info = InfoMetricFamily("brim_device", "Identity of a device", labels=["device"])
    total = _gauge("brim_device_memory_total_bytes", "Memory of the device", "device")
    limit = _gauge("brim_device_power_limit_watts", "Enforced power limit", "device")
    for device in state.devices:
        label = [str(device.index)]
        identity = {"name": device.name, "uuid": device.uuid, "pci": device.pci_bus_id}
        info.add_metric(label, {**identity, "driver": state.about.driver})
        _add(total, label, device.memory_bytes)
        _add(limit, label, device.power_limit_w)
    yield from (info, total, limit)
    for field, (name, factor, text) in _DEVICE_GAUGES.items():
        gauge = _gauge(f"brim_device_{name}", text, "device")
        for device in state.devices:
            value = getattr(state.last(device.index), field, None)
            _add(gauge, [str(device.index)], None if value is None else value * factor)
        yield gauge


def _totals(state: LiveState) -> Iterable[Metric]:
    energy = CounterMetricFamily(
        "brim_device_energy_joules", "Energy since the driver was loaded", labels=["device"]
    )
    held = CounterMetricFamily(
        "brim_device_throttled_seconds",
        "Time in which the clocks were held down, since the exporter started",
        labels=["device", "reason"],
    )
    for device in state.devices:
        label = str(device.index)
        if (joules := state.energy_j(device.index)) is not None:
            energy.add_metric([label], joules)
        for reason, seconds in state.throttled_totals(device.index).items():
            held.add_metric([label, reason], seconds)
    return energy, held


def _owners(state: LiveState) -> Iterable[Metric]:
    """Processes by whose they are, not by pid: their number is no label."""
    count = _gauge("brim_device_processes", "Processes with memory on it", "device", "whose")
    used = _gauge("brim_device_process_memory_bytes", "Their memory on it", "device", "whose")
    for device in state.devices:
        sample = state.last(device.index)
        for whose in ("job", "other", "unknown"):
            if sample is not None and sample.processes is not None:
                mine = [p for p in sample.processes if p.whose == whose]
                label = [str(device.index), whose]
                _add(count, label, len(mine))
                known = [p.memory_bytes for p in mine if p.memory_bytes is not None]
                _add(used, label, sum(known) if len(known) == len(mine) else None)
    return count, used


def _host(state: LiveState) -> Iterable[Metric]:
    cores = _gauge("brim_host_cpu_usable_cores", "What affinity mask and cgroup quota allow")
    _add(cores, [], state.about.usable_cores)
    yield cores
    for field, (name, text) in _HOST_GAUGES.items():
        gauge = _gauge(f"brim_host_{name}", text)
        _add(gauge, [], getattr(state.host, field, None))
        yield gauge
    stalled = _gauge("brim_host_pressure_ratio", "Time stalled (PSI)", "resource", "kind")
    for key, share in (getattr(state.host, "psi", None) or {}).items():
        resource, _, kind = key.partition(".")
        stalled.add_metric([resource, kind], share)
    yield stalled


def _job(state: LiveState) -> Iterable[Metric]:
    job = state.job
    if job is None:
        return
    yield _info("brim_job", "The followed run", {"run": job.name})
    steps = CounterMetricFamily("brim_job_steps", "Optimizer steps of the first rank")
    steps.add_metric([], job.step)
    yield steps
    for field, (name, text) in _JOB_GAUGES.items():
        gauge = _gauge(f"brim_job_{name}", text)
        _add(gauge, [], getattr(job, field))
        yield gauge
    phases = _gauge("brim_job_phase_ratio", "Share of the training threads' time", "phase")
    for phase, share in job.phases.items():
        phases.add_metric([phase], share)
    yield phases


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=list(labels))


def _info(name: str, text: str, values: dict[str, str]) -> InfoMetricFamily:
    family = InfoMetricFamily(name, text)
    family.add_metric([], values)
    return family


def _add(family: GaugeMetricFamily, labels: list[str], value: float | None) -> None:
    """Absent is not zero: no sample."""
    if value is not None:
        family.add_metric(labels, value)


class Server:
    """Serves ``/metrics`` from a thread until it is closed."""

    def __init__(self, state: LiveState, host: str, port: int) -> None:
        """Raises :class:`BrimError` when the address cannot be bound.  Port 0 takes a free one."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(LiveCollector(state))
        try:
            self._http = _Http((host, port), registry)
        except OSError as error:
            raise BrimError(f"--prometheus {host}:{port}: {error.strerror or error}") from None
        self.host = host
        self.port: int = self._http.server_address[1]
        self._thread = threading.Thread(
            target=self._http.serve_forever, name="brim-metrics", daemon=True
        )
        self._thread.start()

    def words(self) -> str:
        """Where it listens, and how to reach it from elsewhere."""
        shown = f"[{self.host}]" if ":" in self.host else self.host
        text = f"brim: metrics on http://{shown}:{self.port}/metrics"
        if ipaddress.ip_address(self.host).is_loopback:
            tunnel = f"ssh -L {self.port}:{shown}:{self.port} {platform.node()}"
            text += f"\n  from another machine: {tunnel}"
        return text

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
        self._thread.join(5.0)


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    # a second exporter on the same port must fail, not share it
    allow_reuse_port = False

    def __init__(self, address: tuple[str, int], registry: CollectorRegistry) -> None:
        if ":" in address[0]:
            import socket

            self.address_family = socket.AF_INET6
        super().__init__(address, _Handler)
        self.registry = registry

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A scraper that hangs up is no news on the user's terminal."""


class _Handler(BaseHTTPRequestHandler):
    """GET only: other methods are 501 by the base class."""

    server: _Http
    timeout = _TIMEOUT_S
    server_version = "brim"
    sys_version = ""

    def do_GET(self) -> None:
        if not self._host_is_ours():
            self._answer(421, b"this name is not served here\n")
        elif urlsplit(self.path).path != "/metrics":
            self._answer(404, b"see /metrics\n")
        else:
            encoder, kind = choose_encoder(self.headers.get("Accept", ""))
            self._answer(200, encoder(self.server.registry), kind)

    def _answer(self, code: int, body: bytes, kind: str = "text/plain; charset=utf-8") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(body)

    def _host_is_ours(self) -> bool:
        """Against DNS rebinding: the name must be this address, or localhost on loopback."""
        named = urlsplit(f"//{self.headers.get('Host', '')}").hostname or ""
        bound = str(self.server.server_address[0])
        if ipaddress.ip_address(bound).is_loopback:
            return named in {bound, "localhost", "127.0.0.1", "::1"}
        # on an outward address the scraper may use the machine's own names
        return named in {bound, platform.node(), platform.node().partition(".")[0]}

    def log_message(self, format: str, *args: Any) -> None:
        """Scrapes are not logged: the terminal belongs to the view."""


def serve(state: LiveState, address: str) -> Server:
    """Start serving on ``ADDRESS:PORT``, ``:PORT`` or ``PORT`` (loopback).

    Raises :class:`UsageError` for an address that is none, or that means every interface.
    """
    return Server(state, *parse(address))


def parse(address: str) -> tuple[str, int]:
    """``"[::1]:9464"`` → ``("::1", 9464)``."""
    host, colon, port = address.rpartition(":")
    if not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"--prometheus {address}: want ADDRESS:PORT, as 127.0.0.1:{PORT}")
    host = host.strip("[]") if colon else ""
    host = "127.0.0.1" if host in ("", "localhost") else host
    try:
        number = ipaddress.ip_address(host)
    except ValueError:
        raise UsageError(
            f"--prometheus {address}: {host} is no address",
            hint=f"want the number of an interface, as 127.0.0.1:{PORT}",
        ) from None
    if number.is_unspecified:
        raise UsageError(
            f"--prometheus {address}: this would serve every network the machine is in",
            hint=f"name one interface's address, or forward it: ssh -L {port}:127.0.0.1:{port} "
            f"{platform.node()}",
        )
    return host, int(port)
