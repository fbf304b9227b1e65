from __future__ import annotations

import json
from pathlib import Path

from brim.train.failures.badsteps import BadSteps, Verdict, note

NAN, INF = float("nan"), float("inf")


def test_fewer_bad_steps_than_the_limit_are_skipped_and_a_good_one_starts_anew() -> None:
    bad = BadSteps(3)
    norms = [1.0, NAN, INF, 2.0, -INF, NAN, 0.5]
    wanted = ["GOOD", "SKIPPED", "SKIPPED", "GOOD", "SKIPPED", "SKIPPED", "GOOD"]
    assert [bad.judge(norm).name for norm in norms] == wanted


def test_the_run_goes_back_twice_and_then_stops() -> None:
    bad = BadSteps(2)
    for wanted in (Verdict.BACK, Verdict.BACK, Verdict.STOP):
        assert bad.judge(NAN) is Verdict.SKIPPED
        assert bad.judge(NAN) is wanted
        bad.gone_back()


def test_notes_are_json_even_of_numbers_that_json_lacks(tmp_path: Path) -> None:
    note(tmp_path, 1, 7, NAN, (3, 5))
    note(tmp_path, 1, 8, 2.5, ())
    lines = (tmp_path / "bad-steps.rank1.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [
        {"step": 7, "loss": "nan", "samples": [3, 5]},
        {"step": 8, "loss": 2.5, "samples": []},
    ]


def test_a_folder_that_takes_no_note_costs_nothing(tmp_path: Path) -> None:
    note(tmp_path / "missing", 0, 1, NAN, (1,))
