"""The controller in a simulated loader: steady, spiky and changing loads."""

from __future__ import annotations

import heapq
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest

from brim.data.controller import WAIT_GOAL, Controller, Window

TaskTime = Callable[[float, random.Random], tuple[float, float]]
"""(now, rng) → (seconds of a sample, of them reading)."""


@dataclass
class Loader:
    """A loader in virtual time: threads take samples in order, rows are taken in order.

    Threads are not slowed down by each other; what is over the cores is the controller's to avoid.
    """

    controller: Controller
    task: TaskTime
    step_s: float
    per_row: int = 8
    now: float = 0.0
    waits: list[tuple[float, float]] = field(default_factory=list)
    """(time, seconds waited) of each row."""
    reasons: list[str] = field(default_factory=list)
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    _busy: list[float] = field(default_factory=list)  # when each thread becomes free
    _done: dict[int, float] = field(default_factory=dict)  # row → when its last sample is made
    _cost: defaultdict[int, np.ndarray] = field(
        default_factory=lambda: defaultdict(lambda: np.zeros(3))
    )  # row → samples, thread seconds, of them reading
    _next: int = 0

    def run(self, seconds: float) -> None:
        row, window = 0, self._window()
        while self.now < seconds:
            self._start_rows(row)
            ready_at = self._done.pop(row)
            waited = max(0.0, ready_at - self.now)
            ready = sum(1 for at in self._done.values() if at <= self.now) + (not waited)
            window["rows"] += 1
            window["waited"] += waited
            if row:
                window["longest"] = max(window["longest"], waited)
            window["ready"] += 0 if waited else min(1.0, ready / self.controller.depth)
            self.now += waited
            self.waits.append((self.now, waited))
            row += 1
            for name, value in zip(
                ("samples", "task_wall", "read"), self._cost.pop(row - 1), strict=True
            ):
                window[name] += value
            window["made"] += 1
            self._start_rows(row)
            self.now += self.step_s
            if self.now - window["start"] >= (0.5 if len(self.reasons) == 0 else 2.0):
                window = self._decide(window)

    def wait_share(self, start: float, end: float) -> float:
        return sum(w for at, w in self.waits if start <= at < end) / (end - start)

    def _start_rows(self, row: int) -> None:
        """Rows may begin while fewer than the depth are ahead of the trainer."""
        while self._next < row + self.controller.depth:
            ends = []
            for _ in range(self.per_row):
                while len(self._busy) < self.controller.threads:
                    heapq.heappush(self._busy, self.now)
                while len(self._busy) > self.controller.threads:
                    self._busy.remove(max(self._busy))
                    heapq.heapify(self._busy)
                start = max(heapq.heappop(self._busy), self.now)
                wall, read = self.task(start, self.rng)
                heapq.heappush(self._busy, start + wall)
                ends.append(start + wall)
                self._cost[self._next] += (1, wall, read)
            self._done[self._next] = max(ends)
            self._next += 1

    def _window(self) -> dict[str, float]:
        names = ("rows", "made", "waited", "longest", "ready", "samples", "task_wall", "read")
        return {"start": self.now, **dict.fromkeys(names, 0.0)}

    def _decide(self, seen: dict[str, float]) -> dict[str, float]:
        window = Window(
            wall=self.now - seen["start"],
            rows=int(seen["rows"]),
            made=int(seen["made"]),
            samples=int(seen["samples"]),
            waited=seen["waited"],
            longest=seen["longest"],
            task_wall=seen["task_wall"],
            ready=seen["ready"] / seen["rows"] if seen["rows"] else 0.0,
            read_share=seen["read"] / seen["task_wall"] if seen["task_wall"] else 0.0,
        )
        change = self.controller.update(window)
        self.reasons.append(change.reason if change else "")
        return self._window()


def controller(cores: float = 16, **options: int) -> Controller:
    return Controller(max_threads=64, max_depth=32, cores=cores, **options)


def steady(seconds: float) -> TaskTime:
    return lambda now, rng: (seconds, 0.0)


def test_a_steady_load_waits_under_1_percent_within_5_seconds() -> None:
    loader = Loader(controller(), steady(0.05), step_s=0.1)
    loader.run(30)
    assert loader.wait_share(5, 30) <= WAIT_GOAL
    assert 4 <= loader.controller.threads <= 8
    assert loader.controller.bound_by == "consumer"


def test_a_fixed_number_that_is_too_small_keeps_waiting() -> None:
    loader = Loader(controller(threads=2, fixed_threads=True), steady(0.05), step_s=0.1)
    loader.run(30)
    assert loader.wait_share(10, 30) > 0.3
    assert loader.controller.threads == 2
    assert loader.controller.bound_by == "decode"


def test_a_spiky_load_waits_under_1_percent_within_20_seconds() -> None:
    def spiky(now: float, rng: random.Random) -> tuple[float, float]:
        return 0.05 + (1.5 if rng.random() < 0.005 else 0.0), 0.0

    loader = Loader(controller(), spiky, step_s=0.1)
    loader.run(60)
    assert loader.wait_share(20, 60) <= WAIT_GOAL
    assert loader.controller.depth >= 8


@pytest.mark.parametrize("seed", range(6))
def test_rare_stalls_of_a_fast_source_are_outlasted_after_20_seconds(seed: int) -> None:
    def stalls(now: float, rng: random.Random) -> tuple[float, float]:
        read = 0.001 + (1.5 if rng.random() < 0.005 else 0.0)
        return 0.006 + read, read

    held = controller(cores=2, threads=2)
    loader = Loader(held, stalls, step_s=0.2, per_row=7, rng=random.Random(seed))
    loader.run(80)
    assert loader.wait_share(20, 80) <= WAIT_GOAL
    assert held.depth <= 24  # as far as the stalls ask for, and no further


@pytest.mark.parametrize(
    ("step_s", "share", "seconds"), [(0.2, 0.005, 1.5), (0.5, 0.005, 1.5), (0.2, 0.02, 0.5)]
)
def test_nine_of_ten_trainers_wait_under_1_percent_whatever_their_pace_and_the_stalls(
    step_s: float, share: float, seconds: float
) -> None:
    def stalls(now: float, rng: random.Random) -> tuple[float, float]:
        read = 0.001 + (seconds if rng.random() < share else 0.0)
        return 0.006 + read, read

    good = 0
    for seed in range(20):
        held = controller(cores=2, threads=2)
        loader = Loader(held, stalls, step_s=step_s, per_row=7, rng=random.Random(seed))
        loader.run(60)
        good += loader.wait_share(20, 60) <= WAIT_GOAL
        assert held.threads >= 2  # with a single one a stall would stop everything
    assert good >= 18


def test_a_lack_of_throughput_is_no_stall() -> None:
    """Rows that all come late ask for threads, not for memory."""
    slow = window(rows=4, waited=1.6, longest=0.4, task_wall=8.0)
    assert slow.stall == 0
    assert window(rows=4, waited=1.6, longest=1.5).stall == 1.5
    assert window(rows=2, waited=1.6, longest=1.5).stall == 0  # too few to tell
    assert window(rows=4, waited=0.1, longest=0.1).stall == 0  # shorter than a step or two


def test_a_load_that_triples_is_followed() -> None:
    loader = Loader(controller(), lambda now, rng: (0.05 if now < 15 else 0.15, 0.0), step_s=0.1)
    loader.run(40)
    assert loader.wait_share(5, 15) <= WAIT_GOAL
    assert loader.wait_share(25, 40) <= WAIT_GOAL
    assert loader.controller.threads >= 12


def test_threads_that_decode_never_outnumber_the_cores() -> None:
    loader = Loader(controller(cores=4), steady(0.2), step_s=0.1)
    loader.run(30)
    assert loader.controller.threads <= 5
    assert loader.controller.bound_by == "cores"


def test_threads_that_wait_for_storage_may_outnumber_the_cores() -> None:
    loader = Loader(controller(cores=2), lambda now, rng: (0.2, 0.19), step_s=0.1)
    loader.run(30)
    assert loader.controller.threads >= 16
    assert loader.wait_share(15, 30) <= WAIT_GOAL


def test_threads_that_are_not_needed_are_given_back_one_by_one() -> None:
    loader = Loader(controller(threads=12, depth=8), steady(0.01), step_s=0.2)
    loader.run(120)
    assert loader.controller.threads <= 2
    assert any("threads would do" in reason for reason in loader.reasons)


def test_each_change_says_why() -> None:
    loader = Loader(controller(), steady(0.05), step_s=0.1)
    loader.run(10)
    first = next(reason for reason in loader.reasons if reason)
    assert first.startswith("too few threads: the trainer waited")
    assert "threads 1 → " in first


def window(**changes: float) -> Window:
    base = {
        "wall": 2,
        "rows": 20,
        "made": 20,
        "samples": 160,
        "waited": 1.0,
        "task_wall": 2.0,
        "ready": 0.0,
    }
    return Window(**{**base, **changes})  # type: ignore[arg-type]


def test_a_step_up_that_brings_nothing_is_taken_back_and_not_tried_again() -> None:
    held = controller(threads=4)
    assert held.update(window(task_wall=9.0)) is not None
    raised = held.threads
    assert raised > 4
    assert held.update(window(task_wall=9.0)) is None  # rows taken now were begun before
    change = held.update(window(task_wall=9.0))
    assert change is not None and held.threads == 4
    assert f"{raised} threads are no faster than 4" in change.reason
    assert held.update(window(task_wall=9.0)) is None or held.threads != raised


def test_an_empty_window_changes_nothing() -> None:
    held = controller()
    assert held.update(window(rows=0)) is None
    assert held.update(window(made=0)) is None
    assert held.update(window(samples=0)) is None
    assert held.update(window(waited=0.0)) is None


@pytest.mark.parametrize("depth", [1, 2])
def test_the_depth_stays_within_the_memory(depth: int) -> None:
    held = Controller(max_threads=64, max_depth=depth, cores=16, depth=depth)
    for _ in range(10):
        held.update(window(ready=0.9))
    assert held.depth == depth


@pytest.mark.parametrize(
    ("shares", "stage"),
    [
        ({}, "decode"),
        ({"read_share": 0.6}, "read"),
        ({"read_share": 0.2, "text_share": 0.5}, "text"),
        ({"read_share": 0.1, "write_share": 0.5}, "transport"),
        ({"text_share": 0.3, "write_share": 0.3}, "decode"),
    ],
)
def test_the_stage_with_the_most_thread_time_is_what_binds(
    shares: dict[str, float], stage: str
) -> None:
    held = controller(threads=2, fixed_threads=True)
    held.update(window(**shares))
    assert held.bound_by == stage
