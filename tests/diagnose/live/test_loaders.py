"""The loader workers' lines, as figures that tell causes apart."""

from __future__ import annotations

import math

import pytest
from tests.diagnose.live.records import LOADING, SITE, TRAIN, process, stack, steps

from brim.diagnose.live.loaders import gather
from brim.diagnose.live.window import choose
from brim.record.workers import WorkerLine

CHOSEN = choose(process(steps(100)), warmup=0)  # ten seconds


def _line(**fields: float) -> WorkerLine:
    return WorkerLine(**({"pid": 201, "workers": 1, "t": 5.0, "wall": 1.0} | fields))  # type: ignore[arg-type]


def test_a_loader_without_workers_has_no_figures() -> None:
    assert gather([], CHOSEN, {}) is None
    assert gather([_line()], choose(process([])), {}) is None


def test_lines_outside_the_window_do_not_count() -> None:
    found = gather([_line(t=-3.0, samples=99), _line(samples=1), _line(t=60.0, samples=99)],
                   CHOSEN, {})  # fmt: skip
    assert found is not None
    assert found.samples == 1


def test_where_no_line_lies_in_the_window_all_serve() -> None:
    """A worker whose one batch takes longer than the window leaves its line after it."""
    found = gather([_line(t=60.0, samples=3)], CHOSEN, {})
    assert found is not None
    assert found.samples == 3


@pytest.mark.parametrize(
    ("fields", "on_core", "starved", "blocked"),
    [
        ({"getitem": 0.8, "collate": 0.2, "thread_cpu": 1.0}, 1.0, 0.0, 0.0),
        ({"getitem": 1.0, "thread_cpu": 0.25, "run_delay": 0.25}, 0.25, 0.25, 0.5),
        ({"getitem": 1.0, "thread_cpu": 0.1}, 0.1, 0.0, 0.9),
        ({"getitem": 0.5, "thread_cpu": 0.9, "run_delay": 0.9}, 1.0, 1.0, 0.0),  # clocks disagree
        ({}, 0.0, 0.0, 0.0),  # no batch was made
    ],
)
def test_the_time_of_making_batches_is_computing_starved_or_blocked(
    fields: dict[str, float], on_core: float, starved: float, blocked: float
) -> None:
    found = gather([_line(**fields)], CHOSEN, {})
    assert found is not None
    assert (found.on_core, found.starved, found.blocked) == pytest.approx(
        (on_core, starved, blocked)
    )


def test_restarted_workers_show_as_more_processes_than_workers() -> None:
    found = gather([_line(pid=pid) for pid in (201, 202, 203)], CHOSEN, {})
    assert found is not None
    assert (found.count, found.pids) == (1, 3)


def test_a_worker_whose_data_ended_early_is_not_active() -> None:
    lines = [_line(pid=201, worker=0, workers=4, t=float(t)) for t in range(10)]
    lines.append(_line(pid=202, worker=1, workers=4))
    found = gather(lines, CHOSEN, {})
    assert found is not None
    assert (found.count, found.active) == (4, 1)


def test_the_functions_that_load_are_named_with_their_share_and_the_users_line() -> None:
    read = stack("2", (f"{SITE}/fsspec/local.py", "read"), (TRAIN, "Photos.__getitem__", 10, "f"),
                 phase="getitem", pid=201)  # fmt: skip
    idle = stack("3", ("/usr/lib/python3.12/queue.py", "get"), pid=201)
    found = gather(
        [_line(stacks={"1": (3, 0.75, 0.75, 0), "2": (1, 0.25, 0, 0), "3": (9, 9, 0, 0)})],  # type: ignore[arg-type]
        CHOSEN, {f"{s.pid}:{s.id}": s for s in (LOADING, read, idle)},
    )  # fmt: skip
    assert found is not None
    assert found.top == [
        ("Image.resize (PIL/Image.py)", pytest.approx(0.75)),
        ("read (fsspec/local.py)", pytest.approx(0.25)),
    ]
    assert found.place is not None
    assert found.place.line == 12
    assert found.reading == pytest.approx(0.25)


def test_tensors_and_bytes_are_means_of_the_batches_that_were_weighed() -> None:
    found = gather(
        [_line(weighed=4, tensors=40, tensor_bytes=4096, storage_bytes=8192)], CHOSEN, {}
    )
    assert found is not None
    assert (found.tensors, found.tensor_bytes, found.storage_bytes) == (10, 1024, 2048)


def test_the_cpu_of_a_sample_is_not_known_without_one() -> None:
    found = gather([_line(cpu=1.0)], CHOSEN, {})
    assert found is not None
    assert math.isnan(found.sample_cpu)
