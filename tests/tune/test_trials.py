"""The log of runs, which is the whole state of a search."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from brim.tune.knobs import Settings
from brim.tune.outcome import Outcome
from brim.tune.trials import OutOfBudget, Trials


class _Job:
    """Runs that are told apart by their number."""

    def __init__(self, wall_s: float = 10.0) -> None:
        self.wall_s, self.settings = wall_s, list[dict[str, object]]()

    def __call__(self, settings: Settings) -> Outcome:
        self.settings.append(dict(settings))
        losses = {0: 1.5, 1: None}
        return Outcome(ending="measured", folder=str(len(self.settings)), wall_s=self.wall_s,
                       steps={0: 0.5}, losses=losses)  # fmt: skip


def test_a_run_is_read_back_from_the_log_by_its_settings_and_its_turn(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    first = Trials(_Job(), budget_s=1000, path=log)
    made = [first.run(s) for s in ({}, {"debug": False}, {})]
    job = _Job()
    again = Trials(job, budget_s=1000, path=log)
    assert again.logged == 3
    # asked for in another order
    assert [again.run(s) for s in ({"debug": False}, {}, {})] == [made[1], made[0], made[2]]
    assert job.settings == []
    again.run({})
    assert job.settings == [{}]


def test_a_run_takes_part_from_when_it_was_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    Trials(_Job(), budget_s=1000, path=log).run({})
    again = Trials(_Job(), budget_s=1000, path=log)
    assert again.measured({}) == []
    assert again.spent_s == 0
    again.run({})
    assert len(again.measured({})) == 1
    assert again.spent_s == 10.0


def test_the_order_of_settings_makes_no_difference_and_true_is_not_one(tmp_path: Path) -> None:
    trials = Trials(_Job(), budget_s=1000)
    trials.run({"liger": True, "debug": False})
    assert len(trials.of({"debug": False, "liger": True})) == 1
    assert trials.of({"memory.flush": 0}) == []


def test_a_run_begins_only_when_it_would_end_in_time_and_the_first_one_always() -> None:
    job = _Job(wall_s=60)
    trials = Trials(job, budget_s=130)
    trials.run({})
    trials.run({})
    with pytest.raises(OutOfBudget):
        trials.run({})
    assert len(job.settings) == 2
    Trials(job, budget_s=1).run({})
    assert len(job.settings) == 3


def test_what_is_in_the_log_may_be_asked_for_when_the_time_is_up(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    full = Trials(_Job(), budget_s=1000, path=log)
    for _ in range(5):
        full.run({})
    short = Trials(_Job(), budget_s=1, path=log)
    for _ in range(5):
        short.run({})
    with pytest.raises(OutOfBudget):
        short.run({})


def test_a_run_after_a_cut_line_is_not_lost_with_it(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    Trials(_Job(), budget_s=1000, path=log).run({})
    log.write_bytes(log.read_bytes()[:-20])
    Trials(_Job(), budget_s=1000, path=log).run({"debug": False})
    again = Trials(_Job(), budget_s=1000, path=log)
    assert again.logged == 1
    assert again.run({"debug": False}).losses == {0: 1.5, 1: None}


def test_a_full_disk_costs_the_log_and_not_the_search(tmp_path: Path) -> None:
    said: list[str] = []
    log = tmp_path / "gone" / "trials.jsonl"
    trials = Trials(_Job(), budget_s=1000, path=log, say=said.append)
    trials.run({})
    trials.run({})
    assert len(trials.measured({})) == 2
    assert len(said) == 1
    assert "cannot be written" in said[0]


def test_only_the_owner_can_read_the_log(tmp_path: Path) -> None:
    log = tmp_path / "trials.jsonl"
    Trials(_Job(), budget_s=1000, path=log).run({})
    assert os.stat(log).st_mode & 0o777 == 0o600


def test_a_run_that_ended_early_does_not_promise_that_the_next_one_does() -> None:
    job = _Job()
    trials = Trials(job, budget_s=168.5)
    for wall in (67.0, 45.0, 12.0):
        job.wall_s = wall
        trials.run({})
    with pytest.raises(OutOfBudget):  # 124 s are spent; the middle run took 45
        trials.run({})
