from __future__ import annotations

import gzip
import json
from pathlib import Path

import torch

from brim.train.window import STEPS, ProfilerWindow


def work() -> None:
    torch.ones(8, 8) @ torch.ones(8, 8)


def test_the_window_opens_after_its_step_and_leaves_a_trace_of_the_steps_inside(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.rank0.json.gz"
    window = ProfilerWindow(path, enabled=True, after=2)
    profiled = []
    for _ in range(8):
        profiled.append(window.open)
        work()
        window.after_step()
    assert profiled == [False, False, True, True, True, False, False, False]
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    assert sum(e.get("name") == "aten::mm" for e in events) == STEPS - 1
    assert not torch.autograd._profiler_enabled()


def test_a_run_that_ends_inside_the_window_closes_it(tmp_path: Path) -> None:
    window = ProfilerWindow(tmp_path / "trace.json", enabled=True, after=1)
    for _ in range(3):
        work()
        window.after_step()
    window.close()
    window.close()
    assert not window.open
    assert not torch.autograd._profiler_enabled()


def test_without_a_device_nothing_is_recorded(tmp_path: Path) -> None:
    window = ProfilerWindow(tmp_path / "trace.json", enabled=False)
    for _ in range(20):
        window.after_step()
    assert not window.open
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_is_profiled_from_outside_is_left_to_it(tmp_path: Path) -> None:
    window = ProfilerWindow(tmp_path / "trace.json", enabled=True, after=1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        window.after_step()
        assert not window.open
    assert list(tmp_path.iterdir()) == []
