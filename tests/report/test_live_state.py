"""Alerts and sums of the live view."""

from __future__ import annotations

import json
from typing import Any

import pytest

from brim.record.devices import About, Device, DeviceProcess, DeviceSample, HostSample
from brim.report.live_state import LiveState

DEVICE = Device(index=0, name="NVIDIA H200", memory_bytes=100, max_sm_clock_mhz=1980.0)


def _state(*devices: Device) -> LiveState:
    return LiveState(
        About(t=0.0, host="n", backend="nvml", period_s=0.5, devices=list(devices or (DEVICE,)))
    )


def _sample(t: float, device: int = 0, **fields: Any) -> DeviceSample:
    return DeviceSample(t=t, mono=t, interval_s=0.5, device=device, **fields)


def _texts(state: LiveState) -> list[str]:
    return [a.text for a in state.alerts()]


def test_heat_for_0_3_of_every_0_5_s_is_60_percent_and_severe() -> None:
    state = _state()
    for i in range(10):
        state.add([_sample(i * 0.5, throttled_s={"heat": 0.3}, sm_clock_mhz=1140.0)], None)
    (alert,) = state.alerts()
    assert alert.severe
    assert alert.text == "device 0 throttled by heat 60% of the time (1140 of 1980 MHz)"


def test_throttling_of_eleven_seconds_ago_is_forgotten_and_its_total_is_not() -> None:
    state = _state()
    state.add([_sample(0.0, throttled_s={"heat": 0.5})], None)
    for i in range(1, 24):
        state.add([_sample(i * 0.5, throttled_s={"heat": 0.0})], None)
    assert state.throttling(0) == {} and _texts(state) == []
    assert state.throttled_totals(0) == {"heat": 0.5}


def test_without_counters_the_bits_of_each_sample_count_and_idle_is_no_fault() -> None:
    state = _state()
    for i in range(10):
        state.add([_sample(i * 0.5, reasons=["idle"] if i < 5 else ["power cap"])], None)
    assert state.throttling(0) == {"power cap": pytest.approx(0.5)}
    assert state.throttled_totals(0) == {}
    assert [a.severe for a in state.alerts()] == [False]


def test_throttling_below_five_percent_is_no_alert() -> None:
    state = _state()
    for i in range(20):
        state.add([_sample(i * 0.5, throttled_s={"heat": 0.02})], None)
    assert _texts(state) == []


def test_one_alert_for_one_reason_on_eight_devices() -> None:
    state = _state(*(Device(index=i, name="H200") for i in range(8)))
    state.add([_sample(1.0, i, throttled_s={"heat": 0.1 + i / 100}) for i in range(8)], None)
    assert _texts(state) == [
        "devices 0, 1, 2, 3, 4, 5, 6, 7 throttled by heat up to 34% of the time"
    ]


def test_another_process_on_the_device_is_severe_and_the_jobs_own_is_not() -> None:
    state = _state()
    mine = DeviceProcess(pid=7, whose="job", name="python")
    state.add([_sample(1.0, processes=[mine])], None)
    assert _texts(state) == []
    other = DeviceProcess(pid=9, whose="other", name="vllm")
    state.add([_sample(2.0, processes=[mine, other])], None)
    (alert,) = state.alerts()
    assert alert.text == "device 0 is shared with 9 vllm" and alert.severe


def test_a_lost_device_and_full_memory() -> None:
    state = _state(DEVICE, Device(index=1, name="lost", absent={"gpu_util": "GPU is lost"}))
    state.add([_sample(1.0, memory_used_bytes=98), _sample(1.0, 1)], None)
    assert _texts(state) == ["device 1 is lost: GPU is lost", "device 0 memory is 98% full"]


def test_the_hosts_limits_become_alerts() -> None:
    state = _state()
    host = HostSample(
        t=1.0,
        mono=1.0,
        interval_s=1.0,
        throttled=0.9,
        psi={"io.full": 0.3, "memory.full": 0.2, "cpu.some": 1.0},
        swap_in_bytes_s=5e6,
    )
    state.add([], host)
    assert _texts(state) == [
        "the CPU quota runs out in 90% of its periods",
        "all tasks wait for memory 20% of the time",
        "the host swaps",
        "all tasks wait for storage 30% of the time",
    ]


def test_the_sparkline_shows_tensor_activity_and_utilisation_only_without_it() -> None:
    state = _state()
    state.add([_sample(1.0, gpu_util=0.98)], None)
    assert state.activity(0) == ("util", [0.98])
    state.add([_sample(2.0, gpu_util=0.98, tensor_active=0.03)], None)
    assert state.activity(0) == ("tensor", [0.03])


def test_a_long_watch_keeps_a_bounded_history() -> None:
    state = _state()
    for i in range(5000):
        state.add([_sample(i * 0.5, gpu_util=0.5, throttled_s={"heat": 0.1})], None)
    assert len(state.activity(0)[1]) == 240 and state.samples == 5000
    assert state.throttled_totals(0)["heat"] == pytest.approx(500.0)


def test_the_snapshot_is_json_with_alerts() -> None:
    state = _state()
    state.add([_sample(1.0, memory_used_bytes=99)], None)
    snapshot = json.loads(state.as_json())
    assert snapshot["devices"][0]["memory_used_bytes"] == 99
    assert snapshot["alerts"] == ["device 0 memory is 99% full"] and snapshot["job"] is None


def test_a_mean_that_is_read_every_few_seconds_stays_on_the_screen_and_out_of_the_history() -> None:
    state = _state()
    read = {"tensor_active": 0.5, "gpu_util": 0.98, "covers_s": {"tensor_active": 4.5}}
    state.add([_sample(0.0, **read)], None)
    for i in range(1, 9):
        state.add([_sample(i * 0.5, power_w=600.0 + i)], None)
    last = state.last(0)
    assert last is not None
    assert (last.tensor_active, last.gpu_util, last.power_w) == (0.5, 0.98, 608.0)
    assert state.activity(0) == ("tensor", [0.5])


def test_a_mean_that_could_not_be_read_is_gone_with_its_reason() -> None:
    state = _state()
    state.add([_sample(0.0, tensor_active=0.5)], None)
    state.add([_sample(0.5, absent={"tensor_active": "GPU is lost"})], None)
    last = state.last(0)
    assert last is not None and last.tensor_active is None
