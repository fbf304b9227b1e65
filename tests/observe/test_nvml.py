"""NVML readings of recorded devices: values, units, and the reason for each that is missing."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from brim.observe.backend import Moment, Unavailable
from brim.observe.gpm import FIELDS as GPM_FIELDS
from brim.observe.nvml import Nvml
from brim.record.devices import DeviceProcess, DeviceSample

Fake = Callable[[dict[str, Any]], Any]


def _moment(tick: int = 0) -> Moment:
    def owner(pid: int, memory: int | None) -> DeviceProcess:
        return DeviceProcess(pid=pid, whose="unknown", memory_bytes=memory)

    return Moment(t=100.0 + tick, mono=10.0 + tick, interval_s=0.5, tick=tick, owner=owner)


def _sample(backend: Nvml, ticks: int = 1) -> list[DeviceSample]:
    for tick in range(ticks):
        samples = backend.sample(_moment(tick))
    return samples


def _open(lib: Any) -> Nvml:
    backend = Nvml(lib, cpu=lambda: 0.0)  # the machine's own speed decides nothing
    backend.open()
    return backend


def test_an_h200_at_98_percent_gpu_util_shows_52_percent_tensor_activity(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.h200()
    recording["devices"][0]["gpm"] = {"2": 91.2, "3": 38.5, "5": 52.3, "10": 33.9, "21": 811.0}
    backend = _open(fake_nvml(recording))
    (sample,) = _sample(backend)
    assert sample.gpu_util == pytest.approx(0.98, abs=0.01)
    assert sample.tensor_active == 0.523 and sample.sm_active == 0.912
    assert sample.pcie_rx_bytes_s == pytest.approx(811 * 2**20, rel=1e-4)
    (device,) = backend.devices()
    assert device.pci_device_id == "2335" and device.power_limit_w == 700.0
    # what this GPM does not have is null with a reason, not zero
    assert sample.nvjpg_util is None
    assert device.absent["nvjpg_util"] == "the device's GPM has no such metric"


def test_a_v100_has_utilisation_power_and_pcie_and_says_why_it_has_no_tensor_activity(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.v100())
    backend = _open(lib)
    (sample,) = _sample(backend)
    (device,) = backend.devices()
    assert sample.gpu_util == pytest.approx(0.97, abs=0.02)
    assert sample.power_w == 270.0
    assert sample.pcie_rx_bytes_s == 38_493_000
    for name in ("sm_active", "tensor_active", "dram_active"):
        assert getattr(sample, name) is None
        assert device.absent[name] == "GPM needs Hopper or newer"
    assert backend.meanings["pcie_rx_bytes_s"].source == "nvmlDeviceGetPcieThroughput"


def test_nvlink_counters_in_kib_become_bytes_per_second(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.v100()
    recording["devices"][0]["fields"] |= {
        "138": {"grows": [0, 512 * 1024]}, "139": {"grows": [0, 256 * 1024]},
    }  # fmt: skip
    backend = _open(fake_nvml(recording))
    # a second apart: the counters are read at 0, soon again (devices take turns), then every 2 s
    samples = [backend.sample(_moment(tick))[0] for tick in range(6)]
    rates = [(s.nvlink_tx_bytes_s, s.nvlink_rx_bytes_s, s.covers_s.get("nvlink_tx_bytes_s"))
             for s in samples]  # fmt: skip
    whole = 512 * 1024 * 1024
    assert rates[1] == (whole, whole / 2, 1.0)
    assert rates[3] == (whole / 2, whole / 4, 2.0)
    assert rates[2] == rates[4] == (None, None, None)


def test_a_call_that_is_not_supported_is_made_once_only(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.v100())
    _sample(_open(lib), ticks=20)
    assert lib.calls["nvmlDeviceGetJpgUtilization"] == 1
    # the dear counters: once at the start and every 2 s
    assert lib.calls["nvmlDeviceGetFieldValues"] == 1 + 11


def test_the_pcie_call_that_measures_for_20_ms_is_made_every_2_s_at_most(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.a100())
    _sample(_open(lib), ticks=20)
    assert lib.calls["nvmlDeviceGetPcieThroughput"] <= 2 * 11


def test_on_hopper_the_slow_pcie_call_is_never_made(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.h200())
    _sample(_open(lib), ticks=8)
    assert "nvmlDeviceGetPcieThroughput" not in lib.calls


def test_heat_shows_as_a_reason_and_as_0_3_seconds_of_the_interval(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.throttled())
    lib.clock = lambda: 9.5
    backend = _open(lib)
    lib.clock = lambda: 10.0
    (sample,) = _sample(backend)
    assert sample.reasons == ["power cap", "heat"]
    assert sample.throttled_s is not None and sample.throttled_s["heat"] == 0.3
    assert sample.sm_clock_mhz == 1140 and sample.temperature_c == 87


def test_without_any_counter_throttled_time_is_absent_not_zero(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.h200()
    fields = recording["devices"][0]["fields"]
    fields |= {str(n): {"error": 3} for n in (74, 76, 269, 270, 271)}
    backend = _open(fake_nvml(recording))
    (sample,) = _sample(backend, ticks=3)
    assert sample.throttled_s is None
    assert backend.devices()[0].absent["throttled_s"] == "the driver counts no throttled time"


def test_a_counter_that_goes_backwards_gives_no_rate(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.v100()
    recording["devices"][0]["fields"]["138"] = {"series": [1000, 500, 800]}
    backend = _open(fake_nvml(recording))
    assert _sample(backend)[0].nvlink_tx_bytes_s is None
    (sample,) = backend.sample(_moment(4))
    assert sample.nvlink_tx_bytes_s == 300 * 1024 / 4.0


def test_mig_partitions_have_their_own_tensor_activity_and_no_utilisation(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    backend = _open(fake_nvml(recordings.mig()))
    whole, large, small = _sample(backend)
    devices = backend.devices()
    assert [d.name for d in devices] == [
        "NVIDIA H200", "NVIDIA H200 MIG 3g.71gb", "NVIDIA H200 MIG 1g.18gb",
    ]  # fmt: skip
    assert (large.tensor_active, small.tensor_active) == (0.7, 0.12)
    # GPM knows the whole device's, and the driver's own figure is not offered under MIG
    assert whole.gpu_util is not None and large.gpu_util is None and whole.mem_util is None
    assert devices[1].parent == devices[0].uuid and devices[2].sm_count == 16
    assert "whole device" in devices[1].absent["power_w"]
    assert devices[2].absent["gpu_util"] == "the device or its driver does not offer it"


def test_an_empty_ring_buffer_falls_back_to_the_last_period(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.a100()
    recording["devices"][0]["samples"]["1"] = []
    recording["devices"][0]["calls"]["nvmlDeviceGetUtilizationRates"] = {"gpu": 7, "memory": 1}
    (sample,) = _sample(_open(fake_nvml(recording)))
    assert sample.gpu_util == 0.07


def test_the_ring_buffers_mean_counts_samples_between_two_readings(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.a100()
    recording["devices"][0]["samples"]["1"] = {"series": [[100] * 50, [0, 0, 100, 0]]}
    (sample,) = _sample(_open(fake_nvml(recording)))
    assert sample.gpu_util == 0.25


def test_a_lost_device_stays_a_row_so_that_the_others_keep_their_numbers(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    backend = _open(fake_nvml(recordings.lost()))
    first, second = _sample(backend)
    assert first.tensor_active is not None and second.power_w is None
    assert "GPU is lost" in backend.devices()[1].absent["power_w"]


def test_a_device_that_falls_off_the_bus_while_sampled_raises_nothing(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.h200()
    lib = fake_nvml(recording)
    backend = _open(lib)
    calls = lib.handles[0].data
    calls["gpm"] = calls["fields"] = {"error": 15}
    calls["fields"] = {"186": {"error": 15}}
    calls["samples"] = {"1": {"error": 15}, "2": {"error": 15}}
    calls["calls"] = {name: {"error": 15} for name in calls["calls"]}
    calls["processes"] = {"error": 15}
    (sample,) = _sample(backend)
    values = {f: getattr(sample, f) for f in (*GPM_FIELDS, "gpu_util", "power_w", "reasons")}
    assert set(values.values()) == {None}
    assert sample.absent["gpu_util"] == "GPU is lost" == sample.absent["tensor_active"]


def test_a_reading_that_fails_once_is_tried_again(fake_nvml: Fake, recordings: ModuleType) -> None:
    recording = recordings.h200()
    calls = recording["devices"][0]["calls"]
    calls["nvmlDeviceGetClockInfo:1"] = {"series": [{"error": 999}, 1500]}
    backend = _open(fake_nvml(recording))
    assert _sample(backend)[0].absent["sm_clock_mhz"] == "Unknown Error"
    assert _sample(backend)[0].sm_clock_mhz == 1500


def test_processes_carry_their_memory(fake_nvml: Fake, recordings: ModuleType) -> None:
    (sample,) = _sample(_open(fake_nvml(recordings.shared(11, 7))))
    assert sample.processes is not None
    assert [(p.pid, p.memory_bytes) for p in sample.processes] == [
        (7, 20_000_000_001), (11, 20_000_000_000),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("recording", "said"),
    [({"error": 9}, "Driver Not Loaded"), ({"driver": "1", "devices": []}, "shows no device")],
)
def test_no_driver_or_no_device_is_one_sentence(
    recording: dict[str, Any], said: str, fake_nvml: Fake
) -> None:
    with pytest.raises(Unavailable, match=said):
        Nvml(fake_nvml(recording)).open()


def test_closing_releases_the_driver(fake_nvml: Fake, recordings: ModuleType) -> None:
    lib = fake_nvml(recordings.h200())
    backend = _open(lib)
    assert lib.open
    backend.close()
    assert not lib.open


def test_every_field_of_a_sample_has_a_meaning_with_unit_and_source(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    backend = _open(fake_nvml(recordings.h200()))
    own = {"t", "mono", "interval_s", "device", "covers_s", "absent"}
    assert set(backend.meanings) == set(DeviceSample.__struct_fields__) - own
    assert all(m.unit and m.source and m.what for m in backend.meanings.values())
