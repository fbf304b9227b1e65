"""The exporter: right names, types and units; absent is not zero; nobody else reads it."""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from prometheus_client.openmetrics.parser import text_string_to_metric_families
from prometheus_client.parser import text_string_to_metric_families as parse_text

from brim.errors import BrimError, UsageError
from brim.record.devices import About, Device, DeviceProcess, DeviceSample, HostSample
from brim.report.live_job import JobView
from brim.report.live_state import LiveState
from brim.report.prometheus import Server, parse, serve

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def _state() -> LiveState:
    devices = [
        Device(
            index=0, name="NVIDIA H200", uuid="GPU-1", memory_bytes=150_000_000_000,
            power_limit_w=700.0,
        ),
        Device(index=1, name="Tesla V100", absent={"tensor_active": "needs Hopper"}),
    ]  # fmt: skip
    state = LiveState(
        About(
            t=0.0, host="secret-host", backend="nvml", driver="580", period_s=0.5,
            devices=devices, usable_cores=14.0,
        )
    )  # fmt: skip
    processes = [
        DeviceProcess(pid=7, whose="job", name="python", memory_bytes=90),
        DeviceProcess(pid=8, whose="job", name="python", memory_bytes=10),
        DeviceProcess(pid=9, whose="other", name="vllm --token=hf_secret"),
    ]
    for t in (1.0, 1.5):
        state.add(
            [
                DeviceSample(
                    t=t, mono=t, interval_s=0.5, device=0, gpu_util=0.98, tensor_active=0.52,
                    pcie_rx_bytes_s=8e8, power_w=612.0, energy_j=5000.0, sm_clock_mhz=1755.0,
                    temperature_c=54.0, memory_used_bytes=91, processes=processes,
                    throttled_s={"heat": 0.25, "power cap": 0.0},
                ),
                DeviceSample(t=t, mono=t, interval_s=0.5, device=1, gpu_util=0.0),
            ],
            HostSample(t=t, mono=t, interval_s=1.0, cpu=13.2, psi={"io.some": 0.02}),
        )  # fmt: skip
    state.job = JobView(
        name="2026-sft", ranks=8, step=132, steps_s=2.4, tokens_s=98_765.0,
        phases={"input": 0.12, "forward, rest": 0.88}, state="running",
    )  # fmt: skip
    return state


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(_state(), "127.0.0.1", 0)
    yield made
    made.close()


def _get(
    server: Server, path: str = "/metrics", *, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], str]:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=5)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()
    finally:
        connection.close()


def _values(server: Server) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    _, _, text = _get(server)
    return {
        (s.name, tuple(sorted(s.labels.items()))): s.value
        for family in parse_text(text)
        for s in family.samples
    }


def _of(device: int, **more: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted({"device": str(device), **more}.items()))


def test_values_are_in_base_units(server: Server) -> None:
    values = _values(server)
    assert values["brim_device_tensor_active_ratio", _of(0)] == 0.52
    assert values["brim_device_sm_clock_hertz", _of(0)] == 1.755e9
    assert values["brim_device_pcie_receive_bytes_per_second", _of(0)] == 8e8
    assert values["brim_device_energy_joules_total", _of(0)] == 5000.0
    assert values["brim_device_throttled_seconds_total", _of(0, reason="heat")] == 0.5
    assert values["brim_host_cpu_busy_cores", ()] == 13.2
    assert values["brim_host_cpu_usable_cores", ()] == 14.0
    assert values["brim_host_pressure_ratio", (("kind", "some"), ("resource", "io"))] == 0.02
    assert values["brim_job_steps_total", ()] == 132
    assert values["brim_job_phase_ratio", (("phase", "input"),)] == 0.12
    assert values["brim_watch_samples_total", ()] == 2


def test_what_is_absent_is_not_exported_and_a_measured_zero_is(server: Server) -> None:
    values = _values(server)
    assert values["brim_device_utilization_ratio", _of(1)] == 0.0
    assert ("brim_device_tensor_active_ratio", _of(1)) not in values
    assert not any(name == "brim_job_images_per_second" for name, _ in values)
    assert not any(name == "brim_device_sm_active_ratio" for name, _ in values)


def test_processes_are_counted_by_owner_and_unknown_memory_is_no_sum(server: Server) -> None:
    values = _values(server)
    assert values["brim_device_processes", _of(0, whose="job")] == 2
    assert values["brim_device_process_memory_bytes", _of(0, whose="job")] == 100
    assert values["brim_device_processes", _of(0, whose="other")] == 1
    assert ("brim_device_process_memory_bytes", _of(0, whose="other")) not in values


def test_nothing_secret_and_no_label_without_bound_is_exported(server: Server) -> None:
    _, _, text = _get(server)
    assert "hf_secret" not in text and "secret-host" not in text and "pid" not in text
    labels = set(re.findall(r'([a-z_]+)="', text))
    assert labels == {
        "device", "reason", "whose", "phase", "resource", "kind",  # of samples
        "name", "uuid", "pci", "driver", "version", "run",  # of info metrics
    }  # fmt: skip


def test_names_and_types_are_valid_openmetrics(server: Server) -> None:
    status, headers, text = _get(server, Accept=OPENMETRICS)
    assert status == 200 and headers["Content-Type"].startswith("application/openmetrics-text")
    families = {f.name: f for f in text_string_to_metric_families(text)}
    assert families["brim_device_energy_joules"].type == "counter"
    assert families["brim_device_tensor_active_ratio"].type == "gauge"
    assert families["brim_device"].type == "info"
    assert all(f.documentation for f in families.values())


@pytest.mark.parametrize("host", ["evil.example", "evil.example:9464", "", "127.0.0.1.evil.com"])
def test_another_host_name_is_refused_against_dns_rebinding(server: Server, host: str) -> None:
    status, _, body = _get(server, Host=host)
    assert status == 421 and "brim_device" not in body


@pytest.mark.parametrize("host", ["localhost:1", "127.0.0.1", "[::1]:9464", "LOCALHOST"])
def test_a_tunnel_may_use_any_port_and_name_of_loopback(server: Server, host: str) -> None:
    assert _get(server, Host=host)[0] == 200


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "TRACE"])
def test_only_get_is_answered(server: Server, method: str) -> None:
    status, headers, _ = _get(server, method=method)
    assert status == 501
    assert not any(name.lower().startswith("access-control") for name in headers)


@pytest.mark.parametrize("path", ["/", "/debug/pprof", "/metrics/../etc", "/-/quit"])
def test_there_is_one_path(server: Server, path: str) -> None:
    assert _get(server, path)[0] == 404


def test_a_scraper_that_says_nothing_does_not_block_the_next(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)):
        assert _get(server)[0] == 200


def test_it_listens_on_loopback_only_and_prints_the_tunnel(server: Server) -> None:
    assert server.host == "127.0.0.1"
    assert f"ssh -L {server.port}:127.0.0.1:{server.port}" in server.words()


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:9464", ("127.0.0.1", 9464)), (":9464", ("127.0.0.1", 9464)),
     ("9464", ("127.0.0.1", 9464)), ("localhost:1", ("127.0.0.1", 1)),
     ("[::1]:80", ("::1", 80)), ("10.0.0.5:9464", ("10.0.0.5", 9464))],
)  # fmt: skip
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse(text) == address


@pytest.mark.parametrize("text", ["0.0.0.0:9464", "[::]:9464"])
def test_every_interface_at_once_is_refused_with_the_tunnel_instead(text: str) -> None:
    with pytest.raises(UsageError, match="every network") as caught:
        parse(text)
    assert "ssh -L 9464:127.0.0.1:9464" in caught.value.hint


@pytest.mark.parametrize("text", ["", "x", "127.0.0.1", "127.0.0.1:99999", "host:80", "1:2:3", "²"])
def test_what_is_no_address_is_wrong_usage(text: str) -> None:
    with pytest.raises(UsageError):
        parse(text)


def test_a_port_in_use_is_one_sentence(server: Server) -> None:
    with pytest.raises(BrimError, match="Address already in use"):
        serve(_state(), f"127.0.0.1:{server.port}")


def _dashboard() -> dict[str, Any]:
    text = resources.files("brim.report").joinpath("grafana.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def test_the_dashboard_asks_only_for_metrics_that_are_exported(server: Server) -> None:
    full = _values(server)
    exported = {name for name, _ in full} | {
        f"brim_device_{n}"
        for n in ("sm_active_ratio", "dram_active_ratio", "pcie_transmit_bytes_per_second",
                  "nvlink_receive_bytes_per_second", "nvlink_transmit_bytes_per_second")
    } | {"brim_job_images_per_second", "brim_job_loss", "brim_host_job_cpu_cores",
         "brim_host_cpu_quota_exhausted_ratio", "brim_host_disk_read_bytes_per_second"}  # fmt: skip
    asked = set()
    for panel in _dashboard()["panels"]:
        for target in panel.get("targets", []):
            asked |= set(re.findall(r"brim_[a-z_]+", target["expr"]))
    assert asked and asked <= exported, asked - exported


def test_the_dashboard_has_the_structure_that_grafana_loads() -> None:
    board = _dashboard()
    assert board["schemaVersion"] >= 39 and board["uid"] and board["title"] == "brim"
    panels = board["panels"]
    assert len({p["id"] for p in panels}) == len(panels)
    for panel in panels:
        position = panel["gridPos"]
        assert position["x"] >= 0 and position["x"] + position["w"] <= 24 and position["h"] > 0
        if panel["type"] != "row":
            assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert panel["targets"] and panel["fieldConfig"]["defaults"]["unit"]
            refs = [t["refId"] for t in panel["targets"]]
            assert len(set(refs)) == len(refs)
    names = {v["name"] for v in board["templating"]["list"]}
    assert names == {"datasource", "instance", "device"}


def test_a_real_prometheus_scrapes_it_and_answers_a_query(server: Server, tmp_path: Path) -> None:
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("no prometheus here (Debian package prometheus)")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    config = tmp_path / "prometheus.yml"
    config.write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n"
        "  - job_name: brim\n"
        f"    static_configs: [{{targets: ['127.0.0.1:{server.port}']}}]\n"
    )
    command = [
        program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        query = urllib.parse.quote('brim_device_tensor_active_ratio{device="0"}')
        found: list[Any] = []
        deadline = time.monotonic() + 40
        while not found and time.monotonic() < deadline:
            time.sleep(0.5)
            found = _ask(f"http://127.0.0.1:{port}/api/v1/query?query={query}")
        assert [float(r["value"][1]) for r in found] == [0.52]
    finally:
        child.terminate()
        child.wait(20)


def _ask(url: str) -> list[Any]:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            result: list[Any] = json.load(answer)["data"]["result"]
            return result
    except OSError:
        return []
