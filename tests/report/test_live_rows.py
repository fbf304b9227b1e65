"""What the live view draws, on devices of every kind, at 80×24 and beyond."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.fakes import recordings
from tests.fakes.pynvml import FakeNvml

from brim.observe.backend import Moment
from brim.observe.nvml import Nvml
from brim.record.devices import About, Device, DeviceProcess, DeviceSample, HostProcess, HostSample
from brim.report.live_job import JobView
from brim.report.live_rows import STYLES, Canvas, plain, rows, sparkline
from brim.report.live_state import LiveState

SNAPSHOTS = Path(__file__).parent / "snapshots"
HOST = HostSample(
    t=5.0,
    mono=5.0,
    interval_s=1.0,
    cpu=13.2,
    job_cpu=12.9,
    psi={"cpu.some": 0.31, "io.some": 0.02},
    disk_read_bytes_s=123e6,
    disk_write_bytes_s=4e3,
    net_rx_bytes_s=2e6,
    net_tx_bytes_s=1e6,
    page_cache_bytes=int(52e9),
    processes=[
        HostProcess(
            pid=4242, ppid=1, name="python", cpu=1.02, system=0.1, state="R", threads=40,
            rss_bytes=int(9.1e9),
        ),
        *(
            HostProcess(
                pid=4300 + i, ppid=4242, name="pt_data_worker", cpu=0.9, system=0.05, state="D",
                threads=3, rss_bytes=int(8e8),
            )
            for i in range(12)
        ),
    ],
)  # fmt: skip
JOB = JobView(
    name="2026-12-01T10-00-00-sft",
    ranks=8,
    step=132,
    steps_s=2.4,
    tokens_s=98_765.4,
    images_s=183.2,
    samples_s=91.6,
    loss=1.2345,
    phases={"input": 0.12, "backward": 0.3, "optimizer": 0.05, "forward, rest": 0.53},
    state="running",
)


def _state(recording: dict[str, Any], *, job: JobView | None = JOB) -> LiveState:
    """Five samples of a recording, half a second apart."""
    lib, now = FakeNvml(recording), [0.0]
    lib.clock = lambda: now[0]
    backend = Nvml(lib, cpu=lambda: 0.0)
    backend.open()

    def owner(pid: int, memory: int | None) -> DeviceProcess:
        whose = "job" if pid == 4242 else "other"
        return DeviceProcess(pid=pid, whose=whose, name="vllm", memory_bytes=memory)  # type: ignore[arg-type]

    state = LiveState(About(t=0.0, host="node1", backend="nvml", period_s=0.5))
    for tick in range(5):
        t = tick * 0.5
        now[0] = t + 0.5
        moment = Moment(t=t, mono=t, interval_s=0.5, tick=tick, owner=owner)
        samples = backend.sample(moment)
        state.about = msgspec.structs.replace(
            state.about, devices=backend.devices(), driver=backend.driver, usable_cores=14.0
        )
        state.add(samples, HOST)
    state.job = job
    return state


def _screen(state: LiveState, canvas: Canvas = Canvas()) -> list[str]:  # noqa: B008 - frozen
    return [plain(row) for row in rows(state, canvas, clock="10:14:22", footer="q quit")]


@pytest.mark.parametrize("name", [*recordings.NAMES, "shared"])
def test_the_screen_at_80_by_24_is_the_recorded_one(name: str) -> None:
    recording = recordings.shared(4242, 99) if name == "shared" else recordings.NAMES[name]()
    drawn = "\n".join(_screen(_state(recording))) + "\n"
    snapshot = SNAPSHOTS / f"live-{name}-80x24.txt"
    if not snapshot.exists():
        snapshot.write_text(drawn)
        pytest.fail(f"{snapshot.name} was not there and is written anew: read it")
    assert drawn == snapshot.read_text()


@pytest.mark.parametrize("size", [(20, 5), (40, 10), (80, 24), (100, 30), (200, 60)])
@pytest.mark.parametrize("name", list(recordings.NAMES))
def test_no_row_is_wider_and_no_screen_higher_than_the_terminal(
    name: str, size: tuple[int, int]
) -> None:
    screen = rows(_state(recordings.NAMES[name]()), Canvas(*size), clock="10:14:22", footer="q")
    assert len(screen) <= size[1]
    assert all(cell_len("".join(t for t, _ in row)) <= size[0] for row in screen)
    assert {style for row in screen for _, style in row} <= set(STYLES)


def test_eight_devices_a_job_and_its_processes_fit_on_24_lines() -> None:
    screen = _screen(_state(recordings.eight()))
    assert len(screen) == 24
    assert sum(line.startswith(f"{i}   H200") for i, line in enumerate(screen[2:10])) == 8
    figures = "98,800 tokens/s · 183 images/s · loss 1.234"
    assert any(figures in line for line in screen)
    wide = _screen(_state(recordings.eight()), Canvas(width=120, height=24))
    assert any(f"{figures} · 91.6 samples/s" in line for line in wide)
    assert any("pt_data_worker" in line for line in screen) and screen[-1] == "q quit"


def test_a_missing_reading_is_a_dash_with_its_reason_never_a_zero() -> None:
    screen = _screen(_state(recordings.v100()))
    device = next(line for line in screen if line.startswith("0   V100-SXM2"))
    assert device.split()[2:6] == ["97%", "–", "–", "–"]
    assert "– tensor_active on device 0: GPM needs Hopper or newer" in screen


def test_another_process_is_named_in_an_alert_and_first_in_the_table() -> None:
    screen = _screen(_state(recordings.shared(4242, 99)))
    assert "! device 0 is shared with 99 vllm" in screen
    table = screen[next(i for i, line in enumerate(screen) if "whose" in line) + 1 :]
    assert table[0].split()[:2] == ["99", "other"] and table[1].split()[:2] == ["4242", "job"]


def test_heat_is_an_alert_with_the_clock_it_leaves() -> None:
    screen = _screen(_state(recordings.throttled()))
    assert "! device 0 throttled by heat 60% of the time (1140 of 1980 MHz)" in screen


def test_the_bar_of_phases_fills_the_width_and_its_legend_names_each() -> None:
    screen = _screen(_state(recordings.h200()))
    legend = next(i for i, line in enumerate(screen) if "backward 30%" in line)
    assert len(screen[legend - 1]) == 80 and set(screen[legend - 1]) == {"█", "▓", "▒", "░"}
    assert screen[legend] == "█ input 12%  ▓ backward 30%  ▒ optimizer 5%  ░ forward, rest 53%"


def test_without_a_device_the_reason_and_the_host_are_shown() -> None:
    about = About(t=0.0, host="n", backend="none", why_none="no driver", period_s=0.5)
    state = LiveState(about)
    state.add([], HOST)
    screen = _screen(state)
    assert "no device: no driver" in screen and any("cores 13.2 busy" in s for s in screen)


def test_names_from_other_programs_cannot_move_the_cursor() -> None:
    about = About(
        t=0.0, host="n\x1b[2J", backend="nvml", period_s=0.5,
        devices=[Device(index=0, name="evil\x1b]0;x\x07 device")],
    )  # fmt: skip
    state = LiveState(about)
    process = DeviceProcess(pid=1, whose="other", name="a\nb\u202ec")
    state.add([DeviceSample(t=1, mono=1, interval_s=1, device=0, processes=[process])], HOST)
    state.job = msgspec.structs.replace(JOB, name="run\r\x1b[31m", verdict="v\x07")
    text = "".join(t for row in rows(state, Canvas(), clock="c") for t, _ in row)
    assert not set(text) & set("\x1b\x07\r\n\u202e")


def test_an_ascii_terminal_gets_no_block_characters() -> None:
    screen = "\n".join(_screen(_state(recordings.h200()), Canvas(unicode=False)))
    assert not set("▁▂▃▄▅▆▇█▓▒░") & set(screen) and "#" in screen


@pytest.mark.parametrize(
    ("values", "width", "drawn"),
    [([0.0, 0.5, 1.0], 3, "▁▅█"), ([1.0], 3, "  █"), ([0.0, 1.0], 1, "█"), ([], 4, "    "),
     ([1.0], 0, "")],
)  # fmt: skip
def test_a_sparkline_ends_with_the_newest_value(
    values: list[float], width: int, drawn: str
) -> None:
    assert sparkline(values, width) == drawn


@given(st.lists(st.floats(-1, 3), max_size=50), st.integers(0, 60))
def test_a_sparkline_is_as_wide_as_asked_for_any_values(values: list[float], width: int) -> None:
    assert len(sparkline(values, width)) == width


@given(
    st.text(max_size=40),
    st.text(max_size=40),
    st.integers(1, 130),
    st.integers(1, 40),
)
def test_any_names_and_any_terminal_keep_rows_within_the_width(
    device: str, process: str, width: int, height: int
) -> None:
    about = About(
        t=0.0, host=device, backend="nvml", period_s=0.5, devices=[Device(index=0, name=device)]
    )
    state = LiveState(about)
    owner = DeviceProcess(pid=1, whose="other", name=process, memory_bytes=1 << 40)
    sample = DeviceSample(
        t=1, mono=1, interval_s=1, device=0, processes=[owner], power_w=1e6, gpu_util=1.0
    )
    state.add([sample], HOST)
    state.job = msgspec.structs.replace(JOB, name=process, verdict=device)
    screen = rows(state, Canvas(width, height), clock="10:14:22", footer="q")
    assert len(screen) <= height
    assert all(cell_len("".join(t for t, _ in row)) <= width for row in screen)
