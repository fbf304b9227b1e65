"""What the driver says of a device reaches the verdict: fakes of NVML beside a recorded run."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.fakes import recordings
from tests.fakes.pynvml import FakeNvml

from brim.cli.measured import judge
from brim.observe.backend import Moment
from brim.observe.nvml import Nvml
from brim.record.devices import FILE, About, DeviceProcess, encode, read
from brim.record.findings import Diagnosis

RUN = Path(__file__).parents[1] / "fixtures" / "runs" / "h200-item-innocent"


def judged(folder: Path, recording: dict[str, Any]) -> Diagnosis:
    """The recorded run, with what the fake device answers at the moments of its samples."""
    run = shutil.copytree(RUN, folder / "run")
    recorded = read(run)
    lib = FakeNvml(recording)
    first = recorded.samples[0].mono - 0.5
    now = [0.0]
    lib.clock = lambda: now[0]
    backend = Nvml(lib, cpu=lambda: 0.0)
    backend.open()

    def owner(pid: int, memory: int | None) -> DeviceProcess:
        whose = "job" if pid == 4242 else "other"
        return DeviceProcess(pid=pid, whose=whose, name="vllm", memory_bytes=memory)  # type: ignore[arg-type]

    lines: list[bytes] = []
    for tick, sample in enumerate(recorded.samples):
        now[0] = sample.mono - first
        moment = Moment(t=sample.t, mono=sample.mono, interval_s=sample.interval_s, tick=tick,
                        owner=owner)  # fmt: skip
        lines += [encode(s) for s in backend.sample(moment)]
    about: About = msgspec.structs.replace(
        recorded.about, devices=backend.devices(), fields=backend.meanings
    )
    (run / FILE).write_bytes(encode(about) + b"".join(lines))
    return judge(run)


def test_a_device_that_heat_holds_at_1140_of_1980_mhz_is_throttled(tmp_path: Path) -> None:
    found = {f.cause: f for f in judged(tmp_path, recordings.throttled()).findings}
    finding = found["device.throttled"]
    # 60 % of the time by the counter of heat, which costs (1 - 1140 / 1980) of it
    assert finding.share == pytest.approx(0.6 * (1 - 1140 / 1980), abs=0.03)
    assert "heat" in finding.evidence[0] and "1140 MHz" in finding.evidence[1]


def test_another_process_that_only_holds_memory_is_a_note_and_no_finding(tmp_path: Path) -> None:
    # the device is no busier than the job's own kernels make it
    diagnosis = judged(tmp_path, recordings.shared(4242, 99))
    assert diagnosis.findings == []
    assert any("vllm (99)" in note for note in diagnosis.notes)


def test_a_power_limit_below_the_boards_own_is_throttling_and_the_boards_own_is_not(
    tmp_path: Path,
) -> None:
    recording = recordings.h200()
    device = recording["devices"][0]
    device["fields"]["74"] = {"per_s": [0, 10**9]}
    device["calls"]["nvmlDeviceGetClockInfo:1"] = 990
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    assert judged(tmp_path / "a", recording).findings == []
    device["calls"]["nvmlDeviceGetEnforcedPowerLimit"] = 350_000
    (finding,) = judged(tmp_path / "b", recording).findings
    assert finding.cause == "device.throttled"
    assert finding.share == pytest.approx(0.5, abs=0.02)


def test_a_device_alone_at_full_clock_has_neither_and_keeps_the_runs_verdict(
    tmp_path: Path,
) -> None:
    recording = recordings.h200()
    recording["devices"][0]["fields"] |= {
        str(n): {"per_s": [0, 0]} for n in (74, 76, 269, 270, 271)
    }
    diagnosis = judged(tmp_path, recording)
    assert diagnosis.findings == []
    assert sum(e.share for e in diagnosis.account) == pytest.approx(1.0)
