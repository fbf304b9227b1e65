"""The sampler: it records, it says why there is nothing, and it never harms."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.waiting import until

from brim.observe.backend import Moment
from brim.observe.devices import Probe, Sampler, Writer, open_backend
from brim.observe.nvml import Nvml
from brim.record.devices import (
    FILE,
    Device,
    DeviceSample,
    HostSample,
    Line,
    Meaning,
    Note,
    lines,
    read,
)

Fake = Callable[[dict[str, Any]], Any]


class Slow:
    """A backend whose samples cost CPU time."""

    name = "slow"
    driver = ""
    meanings: dict[str, Meaning] = {}  # noqa: RUF012 - a protocol's attribute

    def __init__(self, cost_s: float = 0.0, error: Exception | None = None) -> None:
        self.cost_s = cost_s
        self.error = error
        self.closed = False

    def open(self) -> None:
        """Always there."""

    def devices(self) -> list[Device]:
        return [Device(index=0, name="slow")]

    def sample(self, moment: Moment) -> list[DeviceSample]:
        end = time.thread_time() + self.cost_s
        while time.thread_time() < end:
            pass
        if self.error is not None:
            raise self.error
        return [DeviceSample(t=moment.t, mono=moment.mono, interval_s=0.1, device=0)]

    def close(self) -> None:
        self.closed = True


def _count(folder: Path, kind: type[Line]) -> int:
    """Lines of one kind that are in the file by now."""
    path = folder / FILE
    return sum(isinstance(line, kind) for line in lines(path.read_bytes())) if path.exists() else 0


def test_a_run_directory_holds_devices_host_and_meanings_after_a_second(
    tmp_path: Path, fake_nvml: Fake, recordings: ModuleType
) -> None:
    with Sampler(tmp_path, 0.1, backend=Nvml(fake_nvml(recordings.h200()))):
        until(lambda: _count(tmp_path, HostSample))
    recording = read(tmp_path)
    assert recording.about.backend == "nvml" and recording.about.driver == "580.159.04"
    assert recording.about.fields["device.tensor_active"].unit == "share"
    assert recording.about.usable_cores == len(os.sched_getaffinity(0))
    samples = recording.of(0)
    assert len(samples) >= 3
    assert all(s.tensor_active is not None for s in samples)
    assert samples[1].mono - samples[0].mono == pytest.approx(samples[1].interval_s, abs=0.01)
    # the host is sampled about once a second
    assert recording.host[0].interval_s >= 0.9 and recording.host[0].cpu is not None
    assert oct((tmp_path / FILE).stat().st_mode)[-3:] == "600"


def test_without_a_driver_the_file_says_why_and_still_holds_the_host(tmp_path: Path) -> None:
    with Sampler(tmp_path, 0.2, backend=Nvml(_NoDriver())):
        until(lambda: _count(tmp_path, HostSample))
    recording = read(tmp_path)
    assert recording.about.backend == "none" and recording.samples == []
    assert recording.about.why_none == "no NVIDIA driver answers here (Driver Not Loaded)"
    assert recording.host


class _NoDriver:
    class NVMLError(Exception):
        """What the binding raises."""

    def nvmlInit(self) -> None:
        raise self.NVMLError("Driver Not Loaded")


def test_on_a_machine_without_any_maker_every_reason_is_kept() -> None:
    backend, why = open_backend([Nvml(_NoDriver()), Nvml(_NoDriver())])
    assert backend is None and why.count("Driver Not Loaded") == 2


def test_a_short_run_gets_its_last_sample_when_it_stops(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path, 60.0, backend=Slow()).start()
    time.sleep(0.3)
    sampler.stop()
    assert len(read(tmp_path).samples) == 1


def test_a_backend_that_raises_ends_sampling_with_a_note_and_nothing_else(tmp_path: Path) -> None:
    backend = Slow(error=RuntimeError("driver went mad"))
    sampler = Sampler(tmp_path, 0.05, backend=backend).start()
    until(lambda: sampler.failure)
    sampler.stop()
    assert sampler.failure == "RuntimeError: driver went mad"
    assert b"driver went mad" in (tmp_path / FILE).read_bytes() and backend.closed


def test_samples_of_5_ms_at_50_hz_are_slowed_to_five_percent_of_a_core(tmp_path: Path) -> None:
    began = time.monotonic()
    sampler = Sampler(tmp_path, 0.02, backend=Slow(cost_s=0.005), cpu_share=0.05).start()
    time.sleep(2.0)
    sampler.stop()
    wall = time.monotonic() - began
    # unbounded it would be 25 %; opening and the host's own reading are in the figure too
    assert sampler.cpu_s / wall < 0.08
    assert len(read(tmp_path).samples) > 8


def test_a_folder_that_cannot_be_written_disturbs_nobody(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "absent", 0.05, backend=Slow()).start()
    until(lambda: sampler.failure)
    sampler.stop()
    assert "No such file" in sampler.failure


def test_a_full_disk_ends_the_recording_without_an_exception() -> None:
    writer = Writer(Path("/dev/full"))
    writer.write([Note(t=0.0, text="x")])
    assert "No space left" in writer.error
    writer.write([Note(t=0.0, text="y")])
    writer.close()


def test_the_file_stays_below_its_limit_and_the_period_grows_on_the_way(tmp_path: Path) -> None:
    writer = Writer(tmp_path / FILE, max_bytes=4000)
    line = Note(t=0.0, text="z" * 60)
    stretches = []
    for _ in range(200):
        writer.write([line])
        stretches.append(writer.stretch)
    assert (tmp_path / FILE).stat().st_size <= 4000
    assert stretches[10] == 1 and stretches[25] == 2 and max(stretches) >= 8
    assert writer.error == "the file's size limit is reached"


def test_a_second_sampler_appends_and_the_last_about_line_counts(tmp_path: Path) -> None:
    for period_s in (0.1, 0.2):
        with Sampler(tmp_path, period_s, backend=Slow()):
            time.sleep(0.3)
    recording = read(tmp_path)
    assert recording.about.period_s == 0.2 and len(recording.samples) >= 2


def test_a_child_is_the_job_and_a_program_that_brim_runs_in_is_no_stranger(
    tmp_path: Path, fake_nvml: Fake, recordings: ModuleType
) -> None:
    child = subprocess.Popen(["sleep", "30"])
    try:
        lib = fake_nvml(recordings.shared(child.pid, os.getpid()))
        probe = Probe(job=os.getpid(), backend=Nvml(lib))
        probe.tree.refresh()
        (sample,) = probe.sample().devices
        assert sample.processes is not None
        whose = {p.pid: (p.whose, p.name) for p in sample.processes}
        probe.close()
    finally:
        child.kill()
        child.wait()
    assert whose[child.pid] == ("job", "sleep")
    # a benchmark, a notebook: what holds the device in brim's own process is not another's
    assert whose[os.getpid()][0] == "job"


def test_a_sampler_killed_at_any_moment_leaves_a_readable_file(
    tmp_path: Path, recordings: ModuleType
) -> None:
    import json

    (tmp_path / "h200.json").write_text(json.dumps(recordings.h200()))
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom brim.observe.devices import Sampler\n"
        f"Sampler(Path({str(tmp_path)!r}), 0.01, cpu_share=1.0).start()\ntime.sleep(60)\n"
    )
    fakes = Path(__file__).parents[1] / "fakes"
    src = Path(__file__).parents[2] / "src"
    env = {
        **os.environ,
        "FAKE_NVML": str(tmp_path / "h200.json"),
        "PYTHONPATH": f"{fakes}:{src}",
    }
    child = subprocess.Popen([sys.executable, "-c", script], env=env)
    until(lambda: _count(tmp_path, DeviceSample) > 3)
    child.kill()
    child.wait()
    recording = read(tmp_path)
    assert recording.about.devices[0].name == "NVIDIA H200" and len(recording.samples) > 3


@pytest.mark.parametrize("job", [None, 1])
def test_a_probe_takes_samples_without_a_job(job: int | None) -> None:
    probe = Probe(job=job, backend=Slow())
    assert probe.sample().devices[0].device == 0
    probe.close()


def test_the_meanings_are_written_again_when_a_period_has_changed_by_half(
    fake_nvml: Fake, recordings: ModuleType
) -> None:
    lib = fake_nvml(recordings.eight())
    now = [0.0]
    probe = Probe(backend=Nvml(lib, cpu=lambda: lib.cpu_s), clock=lambda: now[0])
    periods = []
    for tick in range(60):
        lib.costs_us = {"nvmlGpmMetricsGet": 1739.0 if tick >= 10 else 10.0}
        now[0] += 0.5
        probe.sample()
        if (about := probe.about_if_new(0.5)) is not None:
            periods.append(about.fields["device.tensor_active"].period_s)
    probe.close()
    assert periods[0] == 0.5 and 2 <= len(periods) <= 6
    # eight times 1.74 ms within half a per cent of a core
    assert periods[-1] == pytest.approx(8 * 1.739e-3 / 0.005, rel=0.35)
