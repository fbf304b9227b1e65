"""The terminal view, driven by textual's pilot."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("textual")

from brim.record.devices import About, Device, DeviceSample
from brim.report.live import LiveApp
from brim.report.live_state import LiveState


def _state() -> LiveState:
    device = Device(index=0, name="NVIDIA H200", memory_bytes=100)
    return LiveState(About(t=0.0, host="n", backend="nvml", period_s=0.05, devices=[device]))


class Ticks:
    """A sampler whose tensor activity counts up; ends after ``most`` samples."""

    def __init__(self, state: LiveState, most: int = 10_000) -> None:
        self.state = state
        self.count = 0
        self.most = most

    def __call__(self) -> bool:
        self.count += 1
        share = min(1.0, self.count / 100)
        sample = DeviceSample(
            t=self.count, mono=self.count, interval_s=1.0, device=0, tensor_active=share
        )
        self.state.add([sample], None)
        return self.count < self.most


def _lines(app: LiveApp) -> list[str]:
    height = app.view.size.height
    return [app.view.render_line(y).text.rstrip() for y in range(height)]


def _drive(app: LiveApp, act: Callable[[Any], Any], size: tuple[int, int] = (80, 24)) -> None:
    async def run() -> None:
        async with app.run_test(size=size) as pilot:
            await act(pilot)

    asyncio.run(asyncio.wait_for(run(), 30))


def test_the_screen_shows_samples_as_they_arrive() -> None:
    state = _state()
    app = LiveApp(state, Ticks(state), 0.05, clock=lambda: "10:00:00")
    seen: list[list[str]] = []

    async def act(pilot: Any) -> None:
        await pilot.pause(0.4)
        seen.append(_lines(app))
        await pilot.pause(1.2)
        seen.append(_lines(app))

    _drive(app, act)
    assert seen[0][0].startswith("brim watch · n") and seen[0][0].endswith("10:00:00")
    early, late = (int(s[2].split()[4].rstrip("%")) for s in seen)
    assert 1 <= early < late
    assert app.failure is None


def test_q_ends_the_view_and_its_sampling_thread() -> None:
    state = _state()
    ticks = Ticks(state)
    app = LiveApp(state, ticks, 0.02)

    async def act(pilot: Any) -> None:
        await pilot.pause(0.2)
        await pilot.press("q")

    _drive(app, act)
    threads = [t for t in threading.enumerate() if t.name == "brim-live"]
    for thread in threads:
        thread.join(2.0)
    assert not any(t.is_alive() for t in threads) and ticks.count > 1


def test_p_freezes_the_screen_while_sampling_goes_on() -> None:
    state = _state()
    ticks = Ticks(state)
    app = LiveApp(state, ticks, 0.02)
    frozen: list[list[str]] = []

    async def act(pilot: Any) -> None:
        await pilot.pause(0.2)
        await pilot.press("p")
        await pilot.pause(0.1)
        frozen.append(_lines(app))
        before = ticks.count
        await pilot.pause(1.5)
        frozen.append(_lines(app))
        assert ticks.count > before + 10

    _drive(app, act)
    assert frozen[0] == frozen[1] and frozen[0][-1] == "paused, p goes on"


def test_the_view_ends_when_the_job_does() -> None:
    state = _state()
    app = LiveApp(state, Ticks(state, most=3), 0.02)

    async def act(pilot: Any) -> None:
        for _ in range(100):
            if not app.is_running:
                break
            await pilot.pause(0.05)

    _drive(app, act)
    assert app.failure is None


def test_an_error_of_the_sampler_is_kept_for_the_verb_and_ends_the_view() -> None:
    def tick() -> bool:
        raise OSError("the driver has gone")

    app = LiveApp(_state(), tick, 0.02)

    async def act(pilot: Any) -> None:
        await pilot.pause(0.5)

    _drive(app, act)
    assert isinstance(app.failure, OSError)


@pytest.mark.parametrize("size", [(80, 24), (40, 8), (160, 50)])
def test_every_line_is_exactly_as_wide_as_the_terminal(size: tuple[int, int]) -> None:
    state = _state()
    app = LiveApp(state, Ticks(state), 0.02)

    async def act(pilot: Any) -> None:
        await pilot.pause(0.2)
        strips = [app.view.render_line(y) for y in range(size[1])]
        assert {s.cell_length for s in strips} == {size[0]}

    _drive(app, act, size)


def test_a_resize_draws_the_whole_screen_anew() -> None:
    state = _state()
    app = LiveApp(state, Ticks(state), 0.02)

    async def act(pilot: Any) -> None:
        await pilot.pause(0.2)
        await pilot.resize_terminal(120, 30)
        await pilot.pause(0.3)
        assert app.view.render_line(0).cell_length == 120
        assert _lines(app)[29].startswith("q quit")

    _drive(app, act)


def test_the_picture_of_the_screen_holds_its_text() -> None:
    state = _state()
    app = LiveApp(state, Ticks(state), 0.02)
    pictures: list[str] = []

    async def act(pilot: Any) -> None:
        await pilot.pause(0.3)
        pictures.append(app.export_screenshot())

    _drive(app, act)
    assert "<svg" in pictures[0] and "tensor" in pictures[0] and "brim&#160;watch" in pictures[0]
