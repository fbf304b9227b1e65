"""Parts of the loader's process that the tests of the loader do not reach."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.data.test_loader import SLOTS, maker_of, prepared_set

from brim.data.process import Engine, Job
from brim.data.ring import Ring
from brim.errors import InputError

LIMIT = """
import sys
import numpy as np
from brim.data.process import limit_memory

limit_memory(300 << 20)
np.ones(100 << 20, np.uint8)
try:
    np.ones(600 << 20, np.uint8)
except MemoryError:
    print("refused")
"""


def test_a_decoder_that_runs_away_gets_a_memory_error_and_not_the_kernels_killer() -> None:
    done = subprocess.run([sys.executable, "-c", LIMIT], capture_output=True, text=True, check=True)
    assert done.stdout == "refused\n"


def job_of(prepared: Any, **changes: Any) -> Job:
    values: dict[str, Any] = {
        "maker": maker_of(prepared),
        "plan": prepared.plan,
        "rank": 0,
        "world": 1,
        "step": 0,
        "row": 0,
        "stop": 1,
        "free": tuple(range(SLOTS)),
        "slots": SLOTS,
        "slot_bytes": 4 << 20,
        "held": 3,
        "bucket": 64,
        "whole": False,
        "threads": 2,
        "cores": 2.0,
        "bad_path": None,
        "max_bad_share": 0.5,
        "max_bad": 100,
        "record": None,
        "avoid": {},
        "suspects": frozenset(),
    }
    return Job(**{**values, **changes})


class Refusing:
    """A maker whose user has something to install."""

    def __init__(self, maker: Any) -> None:
        self._maker = maker

    def __getattr__(self, name: str) -> Any:
        return getattr(self._maker, name)

    def make(self, *args: Any) -> Any:
        raise InputError("a video file needs FFmpeg", hint="install it")


class Broken(Refusing):
    def make(self, *args: Any) -> Any:
        raise ZeroDivisionError("a bug")


@pytest.mark.parametrize(
    ("kind", "expected"),
    [(Refusing, ("refused", "a video file needs FFmpeg", "install it")), (Broken, ("fail",))],
)
def test_what_a_thread_meets_is_sent_to_the_trainer(
    kind: type[Refusing], expected: tuple[str, ...], tmp_path: Path, small_folder: Path
) -> None:
    prepared = prepared_set(tmp_path, small_folder, 12)
    ours, theirs = multiprocessing.Pipe()
    job = job_of(prepared, maker=kind(maker_of(prepared)))
    engine = Engine(job, theirs, Ring.create(SLOTS, 4 << 20))
    engine.controller.depth = 4  # the whole step, so that feeding ends
    engine._feed()
    assert ours.poll(10)
    message = ours.recv()
    assert message[: len(expected)] == expected
    if message[0] == "fail":
        assert "ZeroDivisionError: a bug" in message[1]


def test_rows_leave_in_order_whoever_finishes_first(tmp_path: Path, small_folder: Path) -> None:
    prepared = prepared_set(tmp_path, small_folder, 60)
    ours, theirs = multiprocessing.Pipe()
    engine = Engine(job_of(prepared, stop=1), theirs, Ring.create(SLOTS, 4 << 20))
    engine.controller.depth = 4
    engine._feed()
    rows = []
    for _ in range(4):
        assert ours.poll(10)
        rows.append(ours.recv())
    assert [row[0] for row in rows] == ["row"] * 4
    assert [row[2] for row in rows] == [task.number for task in prepared.plan.rows(0, 0, 1)]
    assert len({row[3] for row in rows}) == 4  # each in a slot of its own
    assert engine._ready == 4


def test_the_wait_for_the_first_row_is_that_for_the_process_and_moves_nothing(
    tmp_path: Path, small_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared = prepared_set(tmp_path, small_folder, 12)
    ours, theirs = multiprocessing.Pipe()
    engine = Engine(job_of(prepared), theirs, Ring.create(SLOTS, 4 << 20))
    ours.send(("next", 3.0))
    ours.send(("next", 0.5))
    ours.close()
    monkeypatch.setattr("os._exit", lambda code: None)
    engine._listen()
    assert (engine._sums.rows, engine._sums.waited, engine._sums.longest) == (2, 0.5, 0.5)


def test_the_slot_that_came_back_last_is_written_next(tmp_path: Path, small_folder: Path) -> None:
    prepared = prepared_set(tmp_path, small_folder, 12)
    _, theirs = multiprocessing.Pipe()
    engine = Engine(job_of(prepared, free=(4, 2, 7)), theirs, Ring.create(SLOTS, 4 << 20))
    assert engine._wait_for_slot() == 7
    engine._free.append(7)
    assert [engine._wait_for_slot() for _ in range(3)] == [7, 2, 4]
