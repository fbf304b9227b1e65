"""What the device's own counters say: throttled clocks, other processes, activity."""

from __future__ import annotations

from typing import Any

import pytest
from tests.diagnose.live.records import process, run, steps

from brim.diagnose.live.account import Rank, look
from brim.diagnose.live.devices import clues, metrics, samples
from brim.record.devices import About, Device, DeviceProcess, DeviceSample, Recording
from brim.record.run import Run
from brim.record.steps import Footer

H200 = {"index": 0, "name": "NVIDIA H200", "capability": [9, 0], "sm_count": 132, "memory": 1 << 37}


def _run(*rows: dict[str, Any], device: dict[str, Any] | None = H200) -> tuple[Run, list[Rank]]:
    """A run of ten seconds with a sample a second, by the given rows in turn."""
    found = [
        DeviceSample(t=n, mono=n, interval_s=1.0, **({"device": 0} | rows[n % len(rows)]))
        for n in range(1, 11)
    ]
    about = About(t=0, host="h", backend="nvml", period_s=1.0,
                  devices=[Device(index=0, name="NVIDIA H200", max_sm_clock_mhz=1980)])  # fmt: skip
    of = run(
        process(steps(100), device=device, footer=Footer(device=device)),
        recording=Recording(about=about, samples=found, host=[], notes=[]),
    )
    return of, look(of, warmup=0)


def test_a_power_cap_that_takes_half_of_the_clock_half_of_the_time_is_named() -> None:
    of = _run({"sm_clock_mhz": 990.0, "throttled_s": {"power cap": 0.5}})
    (clue,) = clues(*of)
    assert clue.cause == "device.throttled"
    assert clue.seconds == pytest.approx(10 * 0.5 * 0.5, rel=0.01)
    assert "power cap 5 s" in clue.evidence[0]
    assert "990 MHz on average, 1980 MHz is the most" in clue.evidence[1]


@pytest.mark.parametrize(
    "row",
    [
        {"sm_clock_mhz": 1980.0, "throttled_s": {}},
        {"sm_clock_mhz": 1980.0, "throttled_s": {"power cap": 0.01}},  # hardly ever
        {"sm_clock_mhz": 300.0, "throttled_s": None},  # idle clocks, and no counters
        {"throttled_s": {"power cap": 0.9}},  # no clock to tell what it cost
    ],
)
def test_full_clocks_idle_clocks_and_unknown_clocks_are_no_throttling(row: dict[str, Any]) -> None:
    assert clues(*_run(row)) == []


def test_reasons_that_hold_at_once_never_make_more_than_the_whole_time() -> None:
    of = _run({"sm_clock_mhz": 990.0, "throttled_s": {"power cap": 1.0, "heat": 1.0}})
    assert clues(*of)[0].seconds <= 5.0 + 1e-9


def test_somebody_elses_process_on_the_device_is_named_with_its_number() -> None:
    other = [DeviceProcess(pid=77, whose="other", name="vllm")]
    (clue,) = clues(*_run({"processes": other}))
    assert (clue.cause, clue.confidence) == ("device.shared", "low")
    assert "vllm (77)" in clue.evidence[0]


@pytest.mark.parametrize(
    "processes",
    [
        None,
        [],
        [DeviceProcess(pid=100, whose="job", name="python")],
        [DeviceProcess(pid=5, whose="unknown")],  # another namespace: not to be told
    ],
)
def test_the_jobs_own_processes_and_unknown_ones_share_nothing(
    processes: list[DeviceProcess] | None,
) -> None:
    assert clues(*_run({"processes": processes})) == []


def test_a_process_that_passes_by_is_no_finding() -> None:
    rows: list[dict[str, Any]] = [{"processes": []}] * 4
    rows.append({"processes": [DeviceProcess(pid=77, whose="other")]})
    assert clues(*_run(*rows)) == []


def test_activity_is_the_mean_over_the_window_and_absent_where_it_is_not_told() -> None:
    found = metrics(*_run({"gpu_util": 0.98, "sm_active": 0.5}, {"gpu_util": 0.96}))
    assert found == {"gpu_util": pytest.approx(0.97), "sm_active": pytest.approx(0.5)}


def test_only_samples_of_the_ranks_device_and_window_count() -> None:
    of, found = _run({"gpu_util": 0.5}, {"gpu_util": 1.0, "device": 1})
    assert {s.device for s in samples(of, found[0])} == {0}
    found[0].evidence.chosen.steps[:] = found[0].evidence.chosen.steps[:30]
    assert [s.mono for s in samples(of, found[0])] == [2]


def test_a_job_without_a_device_has_no_samples_of_one() -> None:
    of, found = _run({"gpu_util": 0.5}, device=None)
    assert samples(of, found[0]) == []
    assert clues(of, found) == []
