"""What sampling costs on a simulated clock, with calls as dear as an H200's driver made them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brim.observe.backend import Moment
from brim.observe.budget import SHARE, Budget, Kind
from brim.observe.nvml import Nvml
from brim.record.devices import DeviceProcess, DeviceSample

Fake = Callable[[dict[str, Any]], Any]

H200_US = {
    # the fields of one call together take hardly more than the energy alone
    "field 83": 3936.1, "field 74": 20.0, "field 76": 20.0, "field 269": 20.0,
    "field 270": 20.0, "field 271": 20.0,
    "nvmlDeviceGetTotalEnergyConsumption": 3824.9, "nvmlDeviceGetSamples": 2322.4,
    "nvmlDeviceGetPowerUsage": 25.7, "nvmlDeviceGetViolationStatus": 1033.9,
    "nvmlDeviceGetMemoryInfo": 68.5, "nvmlDeviceGetClockInfo": 32.2,
    "nvmlDeviceGetCurrentClocksEventReasons": 30.1,
    "nvmlDeviceGetComputeRunningProcesses": 198.7, "nvmlDeviceGetTemperature": 26.8,
    "nvmlDeviceGetUtilizationRates": 26.4, "nvmlDeviceGetPcieThroughput": 20894.2,
    "nvmlGpmMetricsGet": 1739.0,
}  # fmt: skip
"""Measured on an H200, driver 580, one process training beside."""


def _owner(pid: int, memory: int | None) -> DeviceProcess:
    return DeviceProcess(pid=pid, whose="unknown", memory_bytes=memory)


def watch(lib: Any, *, minutes: float = 2.0, period_s: float = 0.5) -> list[list[DeviceSample]]:
    """Samples of every tick; the driver's time is only counted."""
    lib.costs_us = H200_US
    backend = Nvml(lib, cpu=lambda: lib.cpu_s)
    backend.open()
    lib.cpu_s = 0.0
    found = []
    for tick in range(int(minutes * 60 / period_s)):
        moment = Moment(t=100.0 + tick * period_s, mono=tick * period_s, interval_s=period_s,
                        tick=tick, owner=_owner)  # fmt: skip
        found.append(backend.sample(moment))
    return found


def test_eight_h200_at_2_hz_cost_less_than_one_percent_of_a_core(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.eight())
    watch(lib)
    assert 0.5 * SHARE < lib.cpu_s / 120 < 0.0065  # read at every sample it would be 4.5 %
    assert SHARE < 0.01 / 1.5


def test_one_h200_keeps_its_activity_at_every_sample(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.h200())
    samples = [row[0] for row in watch(lib)]
    assert all(s.tensor_active is not None and s.power_w is not None for s in samples)
    assert lib.cpu_s / 120 < 0.0055
    assert all("tensor_active" not in s.covers_s for s in samples)


@pytest.mark.parametrize("name", ["eight", "a100", "v100", "l4", "mig"])
def test_any_node_stays_within_the_share_after_its_start(
    name: str, fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.NAMES[name]())
    watch(lib, minutes=10)
    assert lib.cpu_s / 600 < 0.006


def test_a_stretched_mean_says_how_many_seconds_it_covers_and_together_they_cover_all(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    samples = [row[3] for row in watch(fake_nvml(recordings.eight()))]
    read = [s for s in samples if s.tensor_active is not None]
    assert 20 < len(read) < len(samples) / 4
    covered = sum(s.covers_s.get("tensor_active", s.interval_s) for s in read)
    assert covered == pytest.approx(read[-1].mono - read[0].mono + 0.5, abs=0.01)
    assert max(s.covers_s.get("tensor_active", 0.5) for s in read) <= 10.0
    # states stand until they are read again
    assert all(s.memory_used_bytes is not None for s in samples)


def test_throttled_seconds_lose_nothing_however_seldom_they_are_read(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    recording = recordings.eight()
    for device in recording["devices"]:
        device["fields"]["74"] = recordings.counter(0, 125_000_000)
    lib, now = fake_nvml(recording), [0.0]
    lib.clock = lambda: now[0]
    lib.costs_us = H200_US
    backend = Nvml(lib, cpu=lambda: lib.cpu_s)
    backend.open()
    samples = []
    for tick in range(240):
        now[0] = tick * 0.5
        moment = Moment(t=now[0], mono=now[0], interval_s=0.5, tick=tick, owner=_owner)
        samples += [s for s in backend.sample(moment) if s.device == 5]
    held = [s for s in samples if s.throttled_s]
    assert len(held) < 30
    total = sum(s.throttled_s["power cap"] for s in held if s.throttled_s)
    assert total == pytest.approx(0.25 * held[-1].mono, abs=1e-6)  # a quarter of the time


def test_energy_is_read_by_one_call_and_once_in_a_reading(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.eight())
    asked: Counter[int] = Counter()
    inner = lib.nvmlDeviceGetFieldValues

    def values(handle: Any, wanted: list[Any]) -> Any:
        asked.update(n if isinstance(n, int) else n[0] for n in wanted)
        return inner(handle, wanted)

    lib.nvmlDeviceGetFieldValues = values
    samples = watch(lib)
    readings = sum(s.energy_j is not None for row in samples for s in row)
    assert asked[83] == readings + 8  # and once at the start
    for dear in ("nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetViolationStatus",
                 "nvmlDeviceGetPcieThroughput", "nvmlDeviceGetSamples"):  # fmt: skip
        assert dear not in lib.calls


def test_devices_take_turns_instead_of_being_read_all_in_one_sample(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    samples = watch(fake_nvml(recordings.eight()))
    at_once = [sum(s.energy_j is not None for s in row) for row in samples[20:]]
    assert max(at_once) <= 4


KINDS = (Kind("patient", 2.0, 30.0), Kind("mean", 0.0, 5.0), Kind("moment", 0.0, 2.0))


@given(
    st.lists(st.floats(1e-6, 0.05), min_size=3, max_size=3),
    st.integers(1, 16),
    st.floats(0.1, 5.0),
)
def test_the_plan_never_costs_more_than_its_share(
    costs: list[float], devices: int, interval_s: float
) -> None:
    clock = [0.0]
    budget = Budget(KINDS, share=0.005, cpu=lambda: clock[0])
    for kind, cost in zip(KINDS, costs, strict=True):
        for device in range(devices):
            with budget.reading(kind.name, device, 0.0):
                clock[0] += cost
    budget.plan(interval_s)
    share = sum(
        cost * devices / (budget.periods[kind.name] or interval_s)
        for kind, cost in zip(KINDS, costs, strict=True)
    )
    assert share <= 0.005 * (1 + 1e-6)


def test_the_most_patient_kind_gives_first() -> None:
    clock = [0.0]
    budget = Budget(KINDS, share=0.005, cpu=lambda: clock[0])
    for kind, cost in (("patient", 0.004), ("mean", 0.0017), ("moment", 0.0001)):
        with budget.reading(kind, 0, 0.0):
            clock[0] += cost
    budget.plan(0.5)
    assert 2.0 < budget.periods["patient"] < 4.0
    assert budget.periods["mean"] == budget.periods["moment"] == 0.0
