"""Looking at the training thread's stack."""

from __future__ import annotations

import gc
import hashlib
import json
import random
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brim.record.steps import Stack, read_stacks


class _Owner:
    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.phase = ""

    def write(self) -> None: ...


@pytest.fixture
def sampler(recorder: Any, tmp_path: Path) -> Any:
    from _brim_hooks.sampler import Sampler

    return Sampler(_Owner(), recorder.Appender("stacks.rank0.1.jsonl"))


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def _stacks(tmp_path: Path) -> dict[str, Stack]:
    return read_stacks(tmp_path / "stacks.rank0.1.jsonl")


def test_samples_add_up_to_the_time_and_name_the_function_with_its_line(
    sampler: Any, tmp_path: Path
) -> None:
    sampler.start()
    begin = time.perf_counter()
    _spin(0.5)
    seconds = time.perf_counter() - begin
    sampler.stop()
    taken = sampler.take()
    assert sum(c[1] for c in taken.values()) == pytest.approx(seconds, rel=0.3)
    stacks = _stacks(tmp_path)
    spinning = [k for k in taken if any(f.function.endswith("_spin") for f in stacks[k].frames)]
    assert sum(taken[k][1] for k in spinning) > 0.5 * seconds
    leaf = next(f for f in stacks[spinning[0]].frames if f.function.endswith("_spin"))
    assert leaf.file == __file__
    assert leaf.line > 0
    assert sampler.take() == {}


def test_the_phase_of_the_hooks_is_kept_with_the_stack(sampler: Any, tmp_path: Path) -> None:
    sampler.owner.phase = "backward"
    sampler._sample(0.025, 0.0)
    assert {s.phase for s in _stacks(tmp_path).values()} == {"backward"}


def test_a_stack_is_written_once_however_often_it_is_seen(sampler: Any, tmp_path: Path) -> None:
    for _ in range(20):
        sampler._sample(0.025, 0.0)
    assert len(_stacks(tmp_path)) == 1
    assert next(iter(sampler.take().values()))[0] == 20


def test_ever_new_stacks_end_in_one_that_is_not_told_apart(
    sampler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from _brim_hooks import sampler as module

    monkeypatch.setattr(module, "MAX_STACKS", 3)
    for number in range(6):
        sampler.owner.phase = f"phase {number}"
        sampler._sample(0.025, 0.0)
    assert len(_stacks(tmp_path)) == 3
    assert sampler.take()["0"][0] == 3


def test_a_thread_that_runs_while_the_training_thread_cannot_is_stored_as_the_thief(
    sampler: Any, tmp_path: Path
) -> None:
    ended = threading.Event()

    def greedy() -> None:
        while not ended.is_set():
            sum(range(1000))

    other = threading.Thread(target=greedy)
    other.start()
    try:
        sampler._sample(0.01, 0.0)  # the clocks of all threads are known from here on
        begin = time.perf_counter()
        time.sleep(0.1)
        wall = time.perf_counter() - begin
        sampler._sample(wall, 0.05)
    finally:
        ended.set()
        other.join()
    stacks = _stacks(tmp_path)
    thieves = [s for s in stacks.values() if s.phase == "thief"]
    assert any(f.function.endswith("greedy") for s in thieves for f in s.frames)
    assert sum(c[3] for c in sampler.take().values()) > 0


@pytest.fixture
def switch_interval() -> Iterator[float]:
    before = sys.getswitchinterval()
    yield before
    sys.setswitchinterval(before)


def test_the_interpreter_lock_is_asked_for_sooner_where_no_other_thread_computes(
    sampler: Any, switch_interval: float
) -> None:
    from _brim_hooks.sampler import HASTE

    sampler._sample(0.05, 0.0)
    sampler._ask_in_time()
    assert sys.getswitchinterval() == HASTE
    sampler.stop()
    assert sys.getswitchinterval() == switch_interval


def _parse(text: str) -> None:
    """Keeps the interpreter lock for a few milliseconds."""
    json.loads(text)


def _digest(data: bytes) -> None:
    """Gives the lock away at once, as torch's operations do."""
    hashlib.sha256(data).digest()


def test_what_keeps_the_lock_is_seen_where_it_is_and_not_in_the_next_call_that_gives_it_away(
    sampler: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, switch_interval: float
) -> None:
    monkeypatch.setattr("_brim_hooks.sampler.PERIOD", 0.01)
    monkeypatch.setattr("_brim_hooks.sampler.SHARE", 1.0)
    text, data = json.dumps([{"rank": i} for i in range(10_000)]), bytes(1 << 20)
    truth = {"_parse": 0.0, "_digest": 0.0}
    sampler.start()
    begin = time.perf_counter()
    while sum(truth.values()) < 0.8:
        _parse(text)
        middle = time.perf_counter()
        _digest(data)
        end = time.perf_counter()
        truth["_parse"] += middle - begin
        truth["_digest"] += end - middle
        begin = end
    sampler.stop()
    stacks, taken = _stacks(tmp_path), sampler.take()
    parsing = [k for k in taken if any(f.function == "_parse" for f in stacks[k].frames)]
    share = sum(taken[k][1] for k in parsing) / sum(c[1] for c in taken.values())
    assert share > 0.4 * truth["_parse"] / sum(truth.values())  # 0 where it asks after 5 ms


def test_threads_that_compute_take_turns_as_without_brim(
    sampler: Any, switch_interval: float
) -> None:
    ended = threading.Event()
    other = threading.Thread(target=lambda: [sum(range(1000)) for _ in iter(ended.is_set, True)])
    other.start()
    try:
        sampler._sample(0.01, 0.0)  # the clocks of all threads are known from here on
        time.sleep(0.1)
        sampler._sample(0.1, 0.0)
    finally:
        ended.set()
        other.join()
    sampler._ask_in_time()
    assert sys.getswitchinterval() == switch_interval


def test_an_interval_that_the_program_has_chosen_is_left_to_it(
    sampler: Any, switch_interval: float
) -> None:
    sys.setswitchinterval(4 * switch_interval)
    sampler._sample(0.05, 0.0)
    sampler._ask_in_time()
    sampler.stop()
    assert sys.getswitchinterval() == pytest.approx(4 * switch_interval)


def test_a_forked_child_takes_turns_as_the_program_has_them(
    recorder: Any, sampler: Any, switch_interval: float
) -> None:
    sampler._sample(0.05, 0.0)
    sampler._ask_in_time()
    assert sys.getswitchinterval() < switch_interval
    recorder._after_fork()  # what a child runs first, where the hooks are armed
    assert sys.getswitchinterval() == switch_interval


@pytest.mark.parametrize(
    ("cost_s", "period"), [(0.00005, 0.05), (0.0003, 0.1), (0.01, 0.15)], ids=str
)
def test_dear_samples_are_taken_less_often(
    recorder: Any, monkeypatch: pytest.MonkeyPatch, cost_s: float, period: float
) -> None:
    from _brim_hooks.sampler import _Pace

    clock = 7.0
    monkeypatch.setattr(time, "thread_time", lambda: clock)
    pace = _Pace()
    assert pace.period == 0.05
    for _ in range(100):
        clock += cost_s
        pace.paid()
    assert pace.period == pytest.approx(period, rel=0.01)


def test_a_training_thread_that_has_ended_is_no_error(recorder: Any, sampler: Any) -> None:
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()
    sampler.owner.thread = thread.ident
    sampler._sample(0.025, 0.0)
    assert sampler.take() == {}
    assert recorder._failures == {}


def test_looking_keeps_nothing_of_the_job_alive(sampler: Any) -> None:
    class Big:
        pass

    def step() -> weakref.ref[Big]:
        big = Big()
        _spin(0.2)
        return weakref.ref(big)

    gc.collect()
    gc.disable()
    try:
        sampler.start()
        held = step()
        sampler.stop()
        assert sampler.take()
        assert held() is None
    finally:
        gc.enable()


def test_no_thread_is_left_after_stop_and_the_end_of_measuring_ends_it(
    recorder: Any, sampler: Any
) -> None:
    sampler.start()
    recorder.off = True
    sampler.thread.join(2.0)
    assert not sampler.thread.is_alive()


def test_frames_of_brim_itself_are_left_out(sampler: Any, tmp_path: Path) -> None:
    sampler._sample(0.025, 0.0)
    (stack,) = _stacks(tmp_path).values()
    assert not [f for f in stack.frames if "_brim_hooks" in f.file]


def test_sampling_leaves_the_programs_random_numbers_as_they_were(recorder: Any) -> None:
    random.seed(3)
    before = random.getstate()
    rec = recorder.recorder()
    end = time.monotonic() + 10
    while not rec.sampler.counts and time.monotonic() < end:
        time.sleep(0.01)
    assert rec.sampler.counts
    assert random.getstate() == before
