"""Several ranks of a running job: who is late, who waits, and who has more to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brim.record.run import create
from brim.record.steps import Step
from brim.report.live_job import JobFollower
from brim.report.live_ranks import FEWEST, across, words


def _steps(count: int, *works: float, wall: float = 0.1, **fields: Any) -> list[Step]:
    """Steps of 100 ms; in step ``n`` the rank works ``works[n % len(works)]`` and waits the rest
    inside backward, off its core."""
    rows = []
    for n in range(count):
        work = works[n % len(works)]
        rows.append(
            Step(n=n, t=n * wall, wall=wall, cpu=work, backward=wall, clock="opt0", **fields)
        )
    return rows


def test_a_rank_that_is_always_last_is_named_with_what_the_others_wait() -> None:
    view = across({0: _steps(20, 0.06), 1: _steps(20, 0.1), 2: _steps(20, 0.08)}, on_device=False)
    assert view is not None
    assert (view.last, view.last_share) == (1, 1.0)
    assert view.wait == pytest.approx({0: 0.4, 1: 0.0, 2: 0.2})
    assert view.longer == pytest.approx(0.1 / 0.08 - 1)  # the mean works 80 ms
    assert words(view) == "rank 1 is last in 100% of steps, 25% over the mean; rank 0 waits 40%"


def test_ranks_that_take_turns_share_the_blame() -> None:
    view = across({0: _steps(20, 0.05, 0.1), 1: _steps(20, 0.1, 0.05)}, on_device=False)
    assert view is not None
    assert view.last_share == 0.5
    assert view.longer == pytest.approx(1 / 3)


def test_balanced_ranks_have_no_line() -> None:
    view = across({0: _steps(20, 0.098), 1: _steps(20, 0.1)}, on_device=False)
    assert view is not None
    assert words(view) == ""


def test_beside_an_accelerator_only_the_work_to_do_is_compared() -> None:
    light, heavy = (_steps(20, 0.1, tokens=t, pad_tokens=100) for t in (1100, 1600))
    view = across({0: light, 1: heavy}, on_device=True)
    assert view is not None
    assert view.wait is None and view.last is None
    assert view.tokens == pytest.approx({0: 0.8, 1: 1.2})
    assert words(view) == "rank 1 has 20% more tokens than the mean"


def test_ranks_whose_records_reach_differently_far_are_compared_over_what_they_share() -> None:
    view = across({0: _steps(20, 0.05), 1: _steps(20, 0.1)[4:17]}, on_device=False)
    assert view is not None and view.steps == 13


@pytest.mark.parametrize("ranks", [{}, {0: _steps(20, 0.1)}, {0: [], 1: _steps(20, 0.1)}])
def test_one_rank_or_no_common_step_says_nothing(ranks: dict[int, list[Step]]) -> None:
    assert across(ranks, on_device=False) is None


def test_a_few_steps_are_no_news() -> None:
    ranks = {0: _steps(FEWEST - 1, 0.05), 1: _steps(FEWEST - 1, 0.1)}
    assert across(ranks, on_device=False) is None


def test_the_followed_job_shows_its_ranks(tmp_path: Path) -> None:
    folder = create(tmp_path, ["torchrun", "train.py"], {}, "0")
    for rank, work in ((0, 0.05), (1, 0.1)):
        lines = [{"kind": "header", "pid": 7, "rank": rank, "t": 0.0}]
        lines += [json.loads(_json(s)) for s in _steps(20, work)]
        path = folder / f"steps.rank{rank}.{7 + rank}.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    view = JobFollower(folder).view(now=2.0)
    assert view is not None and view.across is not None
    assert view.across.wait == pytest.approx({0: 0.5, 1: 0.0})


def _json(step: Step) -> bytes:
    import msgspec

    return msgspec.json.encode(step)
